// How the timeline of priced ranks is painted: a row for each rank, its program above, its collectives in lanes below.

const PROGRAM = 18;
const LANE = 8;
const ROW_GAP = 8;

/** Where rows begin, a program and as many lanes as their rank needs; and where the last one ends. */
function rowsOf(spans) {
  const lanes = spans.ranks.map(() => 0);
  for (const { row, lane } of spans.lanes) lanes[row] = Math.max(lanes[row], lane);
  const tops = [];
  let at = ROW_GAP / 2;
  for (const count of lanes) {
    tops.push(at);
    at += PROGRAM + count * LANE + ROW_GAP;
  }
  return { tops, high: at };
}

/** Top and height of a lane of a row. */
function laneBox({ tops }, row, lane) {
  return lane ? [tops[row] + PROGRAM + 2 + (lane - 1) * LANE, LANE - 2] : [tops[row], PROGRAM];
}

/** The colours of the page's theme, and the pattern of waiting, which is told without colour too. */
function spanColours(root, context) {
  const colours = coloursOf(root);
  const read = (name) => css(colours.read(name));
  const found = {
    hues: Array.from({ length: HUES - 1 }, (_, hue) => read(`op-${hue + 1}`)),
    parts: [read("part-compute"), read("part-waiting"), read("part-exposed")],
    inks: [read("ink"), read("ink"), read("on-op")],
    surface: read("surface"),
    ink: read("ink"),
    row: read("card"),
  };
  colours.end();
  return { ...found, hatch: hatched(context, found.parts[WAITS], found.surface), hue: (op) => found.hues[op % found.hues.length] };
}

function hatched(context, below, lines) {
  const tile = document.createElement("canvas");
  [tile.width, tile.height] = [6, 6];
  const made = tile.getContext("2d");
  made.fillStyle = below;
  made.fillRect(0, 0, 6, 6);
  made.strokeStyle = lines;
  made.lineWidth = 1.6;
  for (const shift of [-6, 0, 6]) {
    made.moveTo(shift, 6);
    made.lineTo(shift + 6, 0);
  }
  made.stroke();
  return context.createPattern(tile, "repeat");
}

/** Paint the window `view` {x0, x1}, in microseconds, of the spans that a timeline shows. */
function paintSpans(timeline) {
  const { context, size, shown, rows, colours } = timeline;
  context.clearRect(0, 0, size.width, size.height);
  context.textBaseline = "middle";
  context.font = "600 11px system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif";
  rows.tops.forEach((top, row) => {
    context.fillStyle = colours.row;
    const below = row + 1 < rows.tops.length ? rows.tops[row + 1] : rows.high + ROW_GAP / 2;
    context.fillRect(0, top - 2, size.width, below - top - ROW_GAP + 4);
  });
  for (const lane of shown.lanes) paintLane(timeline, lane);
  if (timeline.cursor !== null) paintSpanCursor(timeline);
}

function paintLane({ context, shown, view, size, rows, colours }, lane) {
  const each = size.width / (view.x1 - view.x0);
  const [top, high] = laneBox(rows, lane.row, lane.lane);
  let drawn = -1;
  for (let at = firstAfter(shown, lane, view.x0); at < lane.stop && shown.begin[at] < view.x1; at++) {
    const left = Math.max((shown.begin[at] - view.x0) * each, -4);
    const right = Math.min((shown.end_of[at] - view.x0) * each, size.width + 4);
    // What is smaller than a pixel shares it with its neighbours, of which the first shows.
    if (right - left < 1 && Math.floor(left) <= drawn) continue;
    drawn = Math.floor(left);
    const [kind, wide] = [shown.kind[at], Math.max(right - left - (right - left > 3 ? 1 : 0), 1)];
    context.fillStyle = kind === COLLECTIVE ? colours.hue(shown.op[at]) : kind === WAITS ? colours.hatch : colours.parts[kind];
    context.fillRect(left, top, wide, high);
    const name = kind === COMPUTES ? "compute" : kind === HELD_UP ? shown.ops[shown.op[at]] : "";
    if (lane.lane === 0 && name && wide > 46) paintName(context, name, colours.inks[kind], Math.max(left, 0), Math.min(right, size.width), top + high / 2);
  }
}

function paintName(context, name, ink, left, right, middle) {
  if (context.measureText(name).width > right - left - 8) return;
  context.fillStyle = ink;
  context.fillText(name, left + 5, middle + 0.5);
}

function paintSpanCursor({ context, shown, view, size, rows, colours, cursor }) {
  const each = size.width / (view.x1 - view.x0);
  const [top, high] = laneBox(rows, shown.row[cursor], shown.lane[cursor]);
  const [left, wide] = [(shown.begin[cursor] - view.x0) * each, (shown.end_of[cursor] - shown.begin[cursor]) * each];
  for (const [width, colour] of [[5, colours.surface], [2.5, colours.ink]]) {
    context.lineWidth = width;
    context.strokeStyle = colour;
    context.strokeRect(left, top, Math.max(wide, 3), high);
  }
}
