// The data of the timeline of priced ranks: spans of time in the lanes of their ranks, which a filter lets through.

const [COMPUTES, WAITS, HELD_UP, COLLECTIVE] = [0, 1, 2, 3];
const SPAN_NUMBERS = ["row", "lane", "kind", "op", "group", "number", "said", "begin", "end_of"];

/** The spans of the page with their arrays unpacked. */
async function readSpans(data) {
  const spans = { ...data };
  for (const name of SPAN_NUMBERS) spans[name] = await unpack(data[name]);
  return withLanes(spans);
}

/** Spans whose `lanes` have where each lane's spans begin and end. */
function withLanes(spans) {
  const lanes = [];
  for (let at = 0; at < spans.row.length; at++) {
    const last = lanes.at(-1);
    if (last && last.row === spans.row[at] && last.lane === spans.lane[at]) last.stop = at + 1;
    else lanes.push({ row: spans.row[at], lane: spans.lane[at], start: at, stop: at + 1 });
  }
  return { ...spans, lanes };
}

/** The ranks that a filter lets through, and their spans: {line, op} (-1: all) and ranks (null: all, otherwise a test). */
function visibleSpans(spans, { line, op, ranks }) {
  if (line < 0 && op < 0 && ranks === null) return spans;
  const shown = spans.ranks.filter((rank) => ranks === null || ranks(rank));
  const rowOf = new Map(shown.map((rank, row) => [rank, row]));
  // What a rank computes belongs to no operation and to no group.
  const all = op < 0 && line < 0;
  const belongs = (at) => all || (spans.kind[at] !== COMPUTES && (op < 0 || spans.op[at] === op) && (line < 0 || spans.group[at] === line));
  const kept = spans.row.reduce((found, row, at) => {
    if (rowOf.has(spans.ranks[row]) && belongs(at)) found.push(at);
    return found;
  }, []);
  const numbers = SPAN_NUMBERS.map((name) => [name, spans[name].constructor.from(kept, (at) => spans[name][at])]);
  const found = { ...spans, ...Object.fromEntries(numbers), ranks: shown };
  found.row = found.row.map((row) => rowOf.get(spans.ranks[row]));
  return withLanes(found);
}

/** The first span of a lane that ends after a moment. */
function firstAfter(spans, { start, stop }, time) {
  let [low, high] = [start, stop];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (spans.end_of[middle] > time) high = middle;
    else low = middle + 1;
  }
  return low;
}

/** What is said of a span: a title, and lines. */
function spanWords(spans, at) {
  const [kind, number, group] = [spans.kind[at], spans.number[at], spans.groups[spans.group[at]]];
  const call = `${spans.ops[spans.op[at]]}${number ? ` #${number}` : ""}`;
  const what = { [COMPUTES]: "computes", [WAITS]: "waits for other ranks", [HELD_UP]: `held up by ${call}`, [COLLECTIVE]: call };
  const time = `${duration(spans.end_of[at] - spans.begin[at])}, from ${duration(spans.begin[at])} to ${duration(spans.end_of[at])}`;
  const of = { [WAITS]: `to come to ${call} of ${group}`, [HELD_UP]: `of ${group}` };
  return [`rank ${spans.ranks[spans.row[at]]}: ${what[kind]}`, [time, of[kind], spans.texts[spans.said[at]]].filter(Boolean)];
}

/** A moment on an axis, in the unit that the distance of its ticks asks for. */
function moment(microseconds, step) {
  const [unit, name] = step >= 1e6 ? [1e6, "s"] : step >= 1e3 ? [1e3, "ms"] : [1, "us"];
  const digits = Math.max(0, Math.ceil(-Math.log10(step / unit)));
  return `${(microseconds / unit).toLocaleString("en", { maximumFractionDigits: digits })} ${name}`;
}
