// What is said of a cell, in words, and how it is put on the page: always as text, never as markup.

const MARKS = ["not its business, or not recorded", "ended", "never made", "not ended", "failed or refused"];

function node(tag, text = "", className = "") {
  const element = document.createElement(tag);
  element.textContent = text;
  if (className) element.className = className;
  return element;
}

/** Microseconds, as people say them. */
function duration(microseconds) {
  if (microseconds < 1000) return `${Math.round(microseconds)} us`;
  if (microseconds < 1e6) return `${(microseconds / 1000).toPrecision(3)} ms`;
  return `${(microseconds / 1e6).toPrecision(3)} s`;
}

/** How late a rank came, from its byte. */
function lateness(chart, byte) {
  if (!byte) return "";
  if (byte === 1) return "came first, or at most 1 us after";
  return `came about ${duration(2 ** ((byte - 1) / chart.late_steps))} after the first rank of its group`;
}

/** The place of a column: "all_reduce #7 of default_pg". */
function columnWords(chart, column) {
  const [name, ranks, number] = chart.groups[chart.line[column]];
  const more = number > 1 ? `, one of ${number.toLocaleString("en")} groups of its kind` : "";
  const what = chart.message[column] ? "message" : "#";
  const first = chart.number[column];
  const shared = chart.span[column] > 1 ? `, the first of ${chart.span[column].toLocaleString("en")} calls that share this column` : "";
  return `${what}${chart.message[column] ? " " : ""}${first} of ${name} (${ranks}${more})${shared}`;
}

/** The lines that tell of a cell: [title, lines]. */
function cellWords(shown, row, column) {
  const { chart } = shown;
  const [place, at] = [shown.rows[row], shown.columns[column]];
  const [mark, op, said, source] = chart.kinds[chart.cell(place, at)];
  const title = `rank ${chart.ranks[place]}: ${chart.ops[op] || "no call"} ${columnWords(chart, at)}`;
  const late = chart.late ? lateness(chart, chart.late[place * chart.width + at]) : "";
  const named = chart.spots.filter((spot) => spot.column === at && spot.places.includes(place));
  const findings = named.map((spot) => `finding ${chart.findings[spot.finding]} names this rank here`);
  const time = chart.time[at] > 0 ? `first rank came ${duration(chart.time[at] * 1e6)} after the first call` : "";
  return [title, [MARKS[mark], ...findings, chart.texts[said], chart.texts[source] && `at ${chart.texts[source]}`, late, time].filter(Boolean)];
}
