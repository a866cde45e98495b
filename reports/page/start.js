// What happens when the page has been read.

function startFilters(timeline) {
  const form = timeline.root.querySelector("form");
  const wrong = form.querySelector(".wrong");
  const changed = () => {
    const ranks = rankTest(form.elements.ranks.value);
    wrong.textContent = ranks === undefined ? "Expected ranks and ranges, such as 0-7, 16." : "";
    form.elements.ranks.toggleAttribute("aria-invalid", ranks === undefined);
    if (ranks === undefined) return;
    const late = form.elements.colour?.value === "late";
    timeline.filter = { line: Number(form.elements.group.value), op: Number(form.elements.op.value), ranks, late };
    timeline.apply();
  };
  form.addEventListener("input", changed);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => setTimeout(changed));
}

/** The buttons of the findings, where the timeline has their place. */
function startFindings(timeline) {
  for (const button of /** @type {NodeListOf<HTMLButtonElement>} */ (document.querySelectorAll("[data-finding]"))) {
    const number = Number(button.dataset.finding);
    const { spots, slow } = timeline.chart;
    button.hidden = ![...spots, ...slow].some((one) => one.finding === number);
    button.addEventListener("click", () => timeline.goTo(number));
  }
}

/** A link into a closed part of the page opens it. */
function openTarget() {
  const target = location.hash && document.getElementById(location.hash.slice(1));
  if (target instanceof HTMLDetailsElement) target.open = true;
}

/** A timeline of the page, if it has it: `make` is given its data and its element. */
async function startTimeline(name, make) {
  const data = document.getElementById(`${name}-data`);
  if (!data) return;
  const root = document.getElementById(name === "chart" ? "timeline" : name);
  try {
    startButtons(await make(JSON.parse(data.textContent), root));
    root.classList.add("ready");
  } catch (error) {
    root.querySelector(".waiting").textContent = `This browser cannot draw the timeline (${error.message}); the tables have it.`;
  }
}

async function startChart(data, root) {
  const timeline = new Timeline(await readChart(data), root);
  startFilters(timeline);
  startFindings(timeline);
  return timeline;
}

async function startSpans(data, root) {
  const timeline = new SpanTimeline(await readSpans(data), root);
  startFilters(timeline);
  return timeline;
}

startTheme();
addEventListener("hashchange", openTarget);
openTarget();
startTimeline("chart", startChart);
startTimeline("spans", startSpans);
