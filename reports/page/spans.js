// The timeline of priced ranks: time across, for each rank what its program does and, below, its collectives.

const SPAN_MARGIN = { left: 70, top: 26 };
const [COMPUTES, WAITS, HELD_UP, COLLECTIVE] = [0, 1, 2, 3];
const SPAN_WORDS = ["computes", "waits for other ranks", "held up by", ""];
const PROGRAM = 18;
const LANE = 8;
const ROW_GAP = 8;
const SMALLEST_SPAN = 1e-3;

/** The spans of the page with their arrays unpacked; `lanes` has where each lane's spans begin and end. */
async function readSpans(data) {
  const spans = { ...data };
  for (const name of ["row", "lane", "kind", "op", "number", "said", "begin", "end_of"]) spans[name] = await unpack(data[name]);
  spans.lanes = [];
  for (let at = 0; at < spans.row.length; at++) {
    const last = spans.lanes.at(-1);
    if (last && last.row === spans.row[at] && last.lane === spans.lane[at]) last.stop = at + 1;
    else spans.lanes.push({ row: spans.row[at], lane: spans.lane[at], start: at, stop: at + 1 });
  }
  return spans;
}

class SpanTimeline {
  constructor(spans, root) {
    this.spans = spans;
    this.root = root;
    this.cursor = -1;
    this.canvas = root.querySelector("canvas");
    this.context = this.canvas.getContext("2d");
    this.tip = root.querySelector(".tip");
    this.live = root.querySelector(".live");
    this.margin = SPAN_MARGIN;
    this.top = 0;
    this.view = { x0: 0, x1: this.widest };
    this.place();
    this.resized();
    watchZoom(this);
    const at = (event) => {
      const [x, y] = drawing.pointer(event, this.canvas);
      this.say(this.spanAt(x, y), x, y);
    };
    this.canvas.addEventListener("pointermove", (event) => event.buttons || at(event));
    this.canvas.addEventListener("click", at);
    this.canvas.addEventListener("pointerleave", () => this.say(-1));
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.resized()).observe(root.querySelector(".plot"));
    watchTheme(this);
  }

  get widest() {
    return Math.max(this.spans.end, SMALLEST_SPAN);
  }

  get zoomed() {
    return this.view.x1 - this.view.x0 < this.widest * (1 - 1e-9);
  }

  /** The height of each row: a program, and as many lanes as its rank needs. */
  place() {
    const lanes = this.spans.ranks.map(() => 0);
    for (const { row, lane } of this.spans.lanes) lanes[row] = Math.max(lanes[row], lane);
    this.tops = [];
    let at = ROW_GAP / 2;
    for (const count of lanes) {
      this.tops.push(at);
      at += PROGRAM + count * LANE + ROW_GAP;
    }
    this.high = at;
  }

  resized() {
    const width = Math.max(this.root.querySelector(".plot").clientWidth - SPAN_MARGIN.left - 8, 80);
    if (this.size && width === this.size.width) return;
    this.size = { width, height: this.high };
    sizeCanvas(this.canvas, width, this.high);
    drawing.select(this.root.querySelector(".plot svg")).attr("width", SPAN_MARGIN.left + width).attr("height", SPAN_MARGIN.top + this.high);
    this.recolour();
  }

  recolour() {
    const colours = coloursOf(this.root);
    const read = (name) => css(colours.read(name));
    this.colours = {
      hues: Array.from({ length: HUES - 1 }, (_, hue) => read(`op-${hue + 1}`)),
      parts: [read("part-compute"), read("part-waiting"), read("part-exposed")],
      inks: [read("ink"), read("ink"), read("on-op")],
      accent: read("accent"),
      surface: read("surface"),
      ink: read("ink"),
      row: read("card"),
    };
    colours.end();
    for (const swatch of this.root.querySelectorAll("[data-hue]")) swatch.style.background = this.hue(Number(swatch.dataset.hue));
    this.hatch = this.hatched();
    this.draw();
  }

  hue(op) {
    return this.colours.hues[op % this.colours.hues.length];
  }

  /** The pattern of waiting, which is told without colour too. */
  hatched() {
    const tile = document.createElement("canvas");
    [tile.width, tile.height] = [6, 6];
    const context = tile.getContext("2d");
    context.fillStyle = this.colours.parts[WAITS];
    context.fillRect(0, 0, 6, 6);
    context.strokeStyle = this.colours.surface;
    context.lineWidth = 1.6;
    for (const shift of [-6, 0, 6]) {
      context.moveTo(shift, 6);
      context.lineTo(shift + 6, 0);
    }
    context.stroke();
    return this.context.createPattern(tile, "repeat");
  }

  look(x0, wide) {
    wide = clamp(wide, Math.min(SMALLEST_SPAN * 10, this.widest), this.widest);
    x0 = clamp(x0, 0, this.widest - wide);
    this.view = { x0, x1: x0 + wide };
    this.draw();
  }

  scale(factor, x = 0.5) {
    const wide = clamp((this.view.x1 - this.view.x0) / factor, Math.min(SMALLEST_SPAN * 10, this.widest), this.widest);
    this.look(this.view.x0 + (this.view.x1 - this.view.x0 - wide) * x, wide);
  }

  pan(x) {
    const { x0, x1 } = this.view;
    this.look(x0 + (x1 - x0) * x, x1 - x0);
  }

  whole() {
    this.look(0, this.widest);
  }

  /** One step, with a little of its neighbours. */
  step() {
    const [begin, end] = this.spans.step;
    this.look(begin - (end - begin) * 0.02, (end - begin) * 1.04);
  }

  draw() {
    cancelAnimationFrame(this.frame);
    this.frame = requestAnimationFrame(() => this.drawNow());
  }

  drawNow() {
    const { context, size, view, spans } = this;
    const ratio = devicePixelRatio || 1;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, size.width, size.height);
    context.textBaseline = "middle";
    context.font = "600 11px system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif";
    this.tops.forEach((top, row) => {
      context.fillStyle = this.colours.row;
      const below = row + 1 < this.tops.length ? this.tops[row + 1] : this.high + ROW_GAP / 2;
      context.fillRect(0, top - 2, size.width, below - top - ROW_GAP + 4);
    });
    for (const lane of spans.lanes) this.drawLane(lane);
    this.drawCursor();
    this.canvas.style.touchAction = this.zoomed ? "none" : "pan-y";
    this.axes();
    this.root.dataset.view = [view.x0, view.x1].map((edge) => edge.toFixed(3)).join(" ");
    this.root.querySelector(".count").textContent = this.zoomed
      ? `${duration(view.x1 - view.x0)} of ${duration(this.widest)}, from ${duration(view.x0)}`
      : `${duration(this.widest)}, all of it`;
  }

  /** The first span of a lane that ends after a moment. */
  first({ start, stop }, time) {
    let [low, high] = [start, stop];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.spans.end_of[middle] > time) high = middle;
      else low = middle + 1;
    }
    return low;
  }

  drawLane(lane) {
    const { spans, view, size, context } = this;
    const each = size.width / (view.x1 - view.x0);
    const [top, high] = this.boxOf(lane.row, lane.lane);
    let drawn = -1;
    for (let at = this.first(lane, view.x0); at < lane.stop && spans.begin[at] < view.x1; at++) {
      const left = Math.max((spans.begin[at] - view.x0) * each, -4);
      const right = Math.min((spans.end_of[at] - view.x0) * each, size.width + 4);
      // What is smaller than a pixel shares it with its neighbours, of which the first shows.
      if (right - left < 1 && Math.floor(left) <= drawn) continue;
      drawn = Math.floor(left);
      const [kind, wide] = [spans.kind[at], Math.max(right - left - (right - left > 3 ? 1 : 0), 1)];
      context.fillStyle = kind === COLLECTIVE ? this.hue(spans.op[at]) : kind === WAITS ? this.hatch : this.colours.parts[kind];
      context.fillRect(left, top, wide, high);
      if (lane.lane === 0 && wide > 46) this.drawName(at, kind, Math.max(left, 0), Math.min(right, size.width), top + high / 2);
    }
  }

  drawName(at, kind, left, right, middle) {
    const { context } = this;
    const name = kind === COMPUTES ? "compute" : kind === HELD_UP ? this.spans.ops[this.spans.op[at]] : "";
    if (!name || context.measureText(name).width > right - left - 8) return;
    context.fillStyle = this.colours.inks[kind];
    context.fillText(name, left + 5, middle + 0.5);
  }

  drawCursor() {
    if (this.cursor < 0) return;
    const { context, spans, view, size, cursor } = this;
    const each = size.width / (view.x1 - view.x0);
    const [top, high] = this.boxOf(spans.row[cursor], spans.lane[cursor]);
    const [left, wide] = [(spans.begin[cursor] - view.x0) * each, (spans.end_of[cursor] - spans.begin[cursor]) * each];
    for (const [width, colour] of [[5, this.colours.surface], [2.5, this.colours.ink]]) {
      context.lineWidth = width;
      context.strokeStyle = colour;
      context.strokeRect(left, top, Math.max(wide, 3), high);
    }
  }

  /** Top and height of a lane of a row. */
  boxOf(row, lane) {
    const top = this.tops[row];
    return lane ? [top + PROGRAM + 2 + (lane - 1) * LANE, LANE - 2] : [top, PROGRAM];
  }

  axes() {
    const { view, size, spans } = this;
    const axes = drawing.select(this.root.querySelector(".plot svg"));
    const x = drawing.scaleLinear([view.x0, view.x1], [0, size.width]);
    const ticks = x.ticks(Math.min(size.width / 110, 10));
    const step = ticks.length > 1 ? ticks[1] - ticks[0] : 1;
    axes
      .select(".across")
      .attr("transform", `translate(${SPAN_MARGIN.left}, ${SPAN_MARGIN.top})`)
      .call(drawing.axisTop(x).tickValues(ticks).tickFormat((time) => moment(time, step)).tickSizeOuter(0));
    const y = drawing.scaleLinear([0, this.high], [0, this.high]);
    axes
      .select(".down")
      .attr("transform", `translate(${SPAN_MARGIN.left}, ${SPAN_MARGIN.top})`)
      .call(drawing.axisLeft(y).tickValues(this.tops.map((top) => top + PROGRAM / 2)).tickFormat((_, row) => `rank ${spans.ranks[row]}`).tickSizeOuter(0));
  }

  /** The span at a point of the canvas, or the nearest within a few pixels; -1 for none. */
  spanAt(x, y) {
    const { spans, view, size } = this;
    const each = (view.x1 - view.x0) / size.width;
    const time = view.x0 + x * each;
    const lane = spans.lanes.find((one) => {
      const [top, high] = this.boxOf(one.row, one.lane);
      return y >= top - 1 && y < top + high + 1;
    });
    if (!lane) return -1;
    const at = this.first(lane, time - 3 * each);
    return at < lane.stop && spans.begin[at] <= time + 3 * each ? at : -1;
  }

  /** What is said of a span: a title, and lines. */
  words(at) {
    const { spans } = this;
    const [kind, op] = [spans.kind[at], spans.ops[spans.op[at]]];
    const what = kind === COLLECTIVE ? `${op} #${spans.number[at]}` : kind === HELD_UP ? `held up by ${op}` : SPAN_WORDS[kind];
    const time = `${duration(spans.end_of[at] - spans.begin[at])}, from ${duration(spans.begin[at])} to ${duration(spans.end_of[at])}`;
    return [`rank ${spans.ranks[spans.row[at]]}: ${what}`, [time, spans.texts[spans.said[at]]].filter(Boolean)];
  }

  say(at, x = 0, y = 0) {
    this.tip.hidden = at < 0;
    if (at < 0) return;
    const [title, lines] = this.words(at);
    showTip(this, title, lines, x, y);
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const step = event.shiftKey ? 10 : 1;
    const does = {
      ArrowLeft: () => this.move(-step),
      ArrowRight: () => this.move(step),
      ArrowUp: () => this.jump(-1),
      ArrowDown: () => this.jump(1),
      PageUp: () => this.pan(-0.9),
      PageDown: () => this.pan(0.9),
      Home: () => this.look(0, this.view.x1 - this.view.x0),
      End: () => this.look(this.widest, this.view.x1 - this.view.x0),
      "+": () => this.scaleAtCursor(1.6),
      "=": () => this.scaleAtCursor(1.6),
      "-": () => this.scaleAtCursor(1 / 1.6),
      0: () => this.whole(),
      Escape: () => this.setCursor(-1),
    };
    if (!Object.hasOwn(does, event.key)) return;
    does[event.key]();
    event.preventDefault();
  }

  scaleAtCursor(factor) {
    const { view, cursor, spans } = this;
    if (cursor < 0) return this.scale(factor);
    const middle = (spans.begin[cursor] + spans.end_of[cursor]) / 2;
    return this.scale(factor, clamp((middle - view.x0) / (view.x1 - view.x0), 0, 1));
  }

  laneOf(at) {
    return this.spans.lanes.findIndex(({ start, stop }) => at >= start && at < stop);
  }

  /** To another bar of the same lane; without a cursor to the first that is seen. */
  move(steps) {
    const { spans, cursor } = this;
    if (!spans.lanes.length) return;
    const lane = spans.lanes[Math.max(this.laneOf(cursor), 0)];
    const from = cursor < 0 ? this.first(lane, this.view.x0) : cursor + steps;
    this.setCursor(clamp(from, lane.start, lane.stop - 1));
  }

  /** To the lane above or below, at the same time. */
  jump(by) {
    const { spans, cursor } = this;
    if (cursor < 0) return this.move(0);
    const lane = spans.lanes[clamp(this.laneOf(cursor) + by, 0, spans.lanes.length - 1)];
    return this.setCursor(clamp(this.first(lane, spans.begin[cursor]), lane.start, lane.stop - 1));
  }

  setCursor(at) {
    this.cursor = at;
    if (at < 0) {
      this.say(-1);
      return this.draw();
    }
    const { spans, view } = this;
    const wide = view.x1 - view.x0;
    if (spans.end_of[at] <= view.x0 || spans.begin[at] >= view.x1) this.look(spans.begin[at] - wide / 4, wide);
    const [title, lines] = this.words(at);
    this.live.textContent = [title, ...lines].join("; ");
    const [top, high] = this.boxOf(spans.row[at], spans.lane[at]);
    const left = ((Math.max(spans.begin[at], this.view.x0) - this.view.x0) / wide) * this.size.width;
    this.say(at, left, top + high);
    return this.draw();
  }
}

/** A moment on an axis, in the unit that the distance of its ticks asks for. */
function moment(microseconds, step) {
  const [unit, name] = step >= 1e6 ? [1e6, "s"] : step >= 1e3 ? [1e3, "ms"] : [1, "µs"];
  const digits = Math.max(0, Math.ceil(-Math.log10(step / unit)));
  return `${(microseconds / unit).toLocaleString("en", { maximumFractionDigits: digits })} ${name}`;
}
