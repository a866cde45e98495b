// The timeline of priced ranks on the page: what it shows, and what happens when somebody points, drags or types.

const SPAN_MARGIN = { left: 70, top: 26 };
const SMALLEST_SPAN = 1e-3;

class SpanTimeline extends Surface {
  constructor(spans, root) {
    super(root, SPAN_MARGIN, 0);
    this.spans = spans;
    this.view = { x0: 0, x1: this.widest };
    this.apply();
    this.start();
  }

  /** Show what the filter lets through, of the same time as before. */
  apply() {
    this.shown = visibleSpans(this.spans, this.filter);
    this.rows = rowsOf(this.shown);
    this.cursor = null;
    this.tip.hidden = true;
    this.resized();
    this.draw();
  }

  get widest() {
    return Math.max(this.spans.end, SMALLEST_SPAN);
  }

  get zoomed() {
    return this.view.x1 - this.view.x0 < this.widest * (1 - 1e-9);
  }

  resized() {
    const [width, height] = [this.room, this.rows.high];
    if (this.size && width === this.size.width && height === this.size.height) return;
    this.size = { width, height };
    sizeCanvas(this.canvas, width, height);
    drawing.select(this.root.querySelector(".plot svg")).attr("width", SPAN_MARGIN.left + width).attr("height", SPAN_MARGIN.top + height);
    this.recolour();
  }

  recolour() {
    this.colours = spanColours(this.root, this.context);
    for (const swatch of this.root.querySelectorAll("[data-hue]")) swatch.style.background = this.colours.hue(Number(swatch.dataset.hue));
    this.draw();
  }

  /** The least time that is looked at. */
  get least() {
    return Math.min(SMALLEST_SPAN * 10, this.widest);
  }

  look(x0, wide) {
    wide = clamp(wide, this.least, this.widest);
    x0 = clamp(x0, 0, this.widest - wide);
    this.view = { x0, x1: x0 + wide };
    this.draw();
  }

  scale(factor, x = 0.5) {
    const { x0, x1 } = this.view;
    const wide = clamp((x1 - x0) / factor, this.least, this.widest);
    this.look(x0 + (x1 - x0 - wide) * x, wide);
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

  drawNow() {
    const ratio = devicePixelRatio || 1;
    this.context.setTransform(ratio, 0, 0, ratio, 0, 0);
    paintSpans(this);
    this.canvas.style.touchAction = this.zoomed ? "none" : "pan-y";
    this.axes();
    const { x0, x1 } = this.view;
    this.root.dataset.view = [x0, x1].map((edge) => edge.toFixed(3)).join(" ");
    this.root.querySelector(".count").textContent = this.counted();
  }

  /** How much of everything is shown. */
  counted() {
    const { spans, shown, view } = this;
    const time = this.zoomed ? `${duration(view.x1 - view.x0)} of ${duration(this.widest)}, from ${duration(view.x0)}` : `${duration(this.widest)}, all of it`;
    if (shown.row.length === spans.row.length) return time;
    const [bars, all] = [shown.row.length, spans.row.length].map((count) => count.toLocaleString("en"));
    return `${shown.ranks.length} of ${spans.ranks.length} ranks, ${bars} of ${all} bars; ${time}`;
  }

  axes() {
    const { view, size, shown, rows } = this;
    const axes = drawing.select(this.root.querySelector(".plot svg"));
    const x = drawing.scaleLinear([view.x0, view.x1], [0, size.width]);
    const ticks = x.ticks(Math.min(size.width / 110, 10));
    const step = ticks.length > 1 ? ticks[1] - ticks[0] : 1;
    axes
      .select(".across")
      .attr("transform", `translate(${SPAN_MARGIN.left}, ${SPAN_MARGIN.top})`)
      .call(drawing.axisTop(x).tickValues(ticks).tickFormat((time) => moment(time, step)).tickSizeOuter(0));
    const y = drawing.scaleLinear([0, rows.high], [0, rows.high]);
    axes
      .select(".down")
      .attr("transform", `translate(${SPAN_MARGIN.left}, ${SPAN_MARGIN.top})`)
      .call(drawing.axisLeft(y).tickValues(rows.tops.map((top) => top + PROGRAM / 2)).tickFormat((_, row) => `rank ${shown.ranks[row]}`).tickSizeOuter(0));
  }

  /** The span at a point of the canvas, or the nearest within a few pixels; null for none. */
  spanAt(x, y) {
    const { shown, view, size, rows } = this;
    const each = (view.x1 - view.x0) / size.width;
    const time = view.x0 + x * each;
    const lane = shown.lanes.find((one) => {
      const [top, high] = laneBox(rows, one.row, one.lane);
      return y >= top - 1 && y < top + high + 1;
    });
    if (!lane) return null;
    const at = firstAfter(shown, lane, time - 3 * each);
    return at < lane.stop && shown.begin[at] <= time + 3 * each ? at : null;
  }

  point(x, y) {
    this.say(this.spanAt(x, y), x, y);
  }

  say(at, x = 0, y = 0) {
    this.tip.hidden = at === null;
    if (at !== null) showTip(this, ...spanWords(this.shown, at), x, y);
  }

  moves(step) {
    return {
      ArrowLeft: () => this.move(-step),
      ArrowRight: () => this.move(step),
      ArrowUp: () => this.jump(-1),
      ArrowDown: () => this.jump(1),
      PageUp: () => this.pan(-0.9),
      PageDown: () => this.pan(0.9),
      Home: () => this.look(0, this.view.x1 - this.view.x0),
      End: () => this.look(this.widest, this.view.x1 - this.view.x0),
    };
  }

  scaleAtCursor(factor) {
    const { view, cursor, shown } = this;
    if (cursor === null) return this.scale(factor);
    const middle = (shown.begin[cursor] + shown.end_of[cursor]) / 2;
    return this.scale(factor, clamp((middle - view.x0) / (view.x1 - view.x0), 0, 1));
  }

  laneOf(at) {
    return this.shown.lanes.findIndex(({ start, stop }) => at >= start && at < stop);
  }

  /** To another bar of the same lane; without a cursor to the first that is seen. */
  move(steps) {
    const { shown, cursor } = this;
    if (!shown.lanes.length) return;
    const lane = shown.lanes[cursor === null ? 0 : this.laneOf(cursor)];
    const from = cursor === null ? firstAfter(shown, lane, this.view.x0) : cursor + steps;
    this.setCursor(clamp(from, lane.start, lane.stop - 1));
  }

  /** To the lane above or below, at the same time. */
  jump(by) {
    const { shown, cursor } = this;
    if (cursor === null) return this.move(0);
    const lane = shown.lanes[clamp(this.laneOf(cursor) + by, 0, shown.lanes.length - 1)];
    return this.setCursor(clamp(firstAfter(shown, lane, shown.begin[cursor]), lane.start, lane.stop - 1));
  }

  /** Put the cursor on a bar, bring it into view, and tell of it; null puts it nowhere. */
  setCursor(at) {
    this.cursor = at;
    this.draw();
    if (at === null) return this.say(null);
    const { shown, view } = this;
    const wide = view.x1 - view.x0;
    if (shown.end_of[at] <= view.x0 || shown.begin[at] >= view.x1) this.look(shown.begin[at] - wide / 4, wide);
    const [title, lines] = spanWords(shown, at);
    this.live.textContent = [title, ...lines].join("; ");
    const [top, high] = laneBox(this.rows, shown.row[at], shown.lane[at]);
    const left = ((Math.max(shown.begin[at], this.view.x0) - this.view.x0) / wide) * this.size.width;
    return this.say(at, left, top + high);
  }
}
