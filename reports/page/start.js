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

function startButtons(timeline) {
  const does = {
    in: () => timeline.scaleAtCursor(1.6),
    out: () => timeline.scaleAtCursor(1 / 1.6),
    whole: () => timeline.look(0, 0, timeline.widest, timeline.highest),
    left: () => timeline.pan(-0.4, 0),
    right: () => timeline.pan(0.4, 0),
  };
  for (const button of timeline.root.querySelectorAll("[data-do]")) {
    button.addEventListener("click", does[button.dataset.do]);
  }
  for (const button of document.querySelectorAll("[data-finding]")) {
    const number = Number(button.dataset.finding);
    button.hidden = !timeline.chart.spots.some((spot) => spot.finding === number);
    button.addEventListener("click", () => timeline.goTo(number));
  }
}

/** A link into a closed part of the page opens it. */
function openTarget() {
  const target = location.hash && document.getElementById(location.hash.slice(1));
  if (target instanceof HTMLDetailsElement) target.open = true;
}

async function startTimeline() {
  const data = document.getElementById("chart-data");
  if (!data) return;
  const root = document.getElementById("timeline");
  try {
    const timeline = new Timeline(await readChart(JSON.parse(data.textContent)), root);
    startFilters(timeline);
    startButtons(timeline);
    root.classList.add("ready");
  } catch (error) {
    root.querySelector(".waiting").textContent = `This browser cannot draw the timeline (${error.message}); the table below has it.`;
  }
}

startTheme();
addEventListener("hashchange", openTarget);
openTarget();
startTimeline();
