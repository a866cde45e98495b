// The timeline on the page: what it shows, and what happens when somebody points, drags, scrolls or types.

const MARGIN = { left: 62, top: 26 };
const LARGEST = { width: 46, height: 26 };
const TALLEST = 480;
/** Calls of one finding that lie farther apart than so many times what is seen are not shown at once. */
const FARTHEST = 3;

class Timeline extends Surface {
  constructor(chart, root) {
    super(root, MARGIN, STRIP);
    this.chart = chart;
    this.apply();
    this.start();
  }

  /** Show what the filter lets through, all of it. */
  apply() {
    this.shown = visible(this.chart, this.filter);
    const rowOf = new Map(this.shown.rows.map((place, row) => [place, row]));
    const columnOf = new Map(this.shown.columns.map((column, at) => [column, at]));
    this.shown.spots = this.chart.spots.flatMap(({ column, places }) =>
      places.filter((place) => rowOf.has(place) && columnOf.has(column)).map((place) => ({ row: rowOf.get(place), column: columnOf.get(column) })),
    );
    this.shown.found = this.chart.spots.filter((spot) => columnOf.has(spot.column)).map((spot) => columnOf.get(spot.column));
    this.cursor = null;
    this.say(null);
    this.view = null;
    this.resized();
    const [ranks, calls] = [this.shown.rows.length, this.shown.columns.length];
    this.root.querySelector(".count").textContent =
      `${ranks.toLocaleString("en")} of ${this.chart.ranks.length.toLocaleString("en")} ranks, ` +
      `${calls.toLocaleString("en")} of ${this.chart.width.toLocaleString("en")} columns`;
  }

  resized() {
    const zoomed = this.view && this.zoomed;
    const width = this.room;
    const height = clamp(this.shown.rows.length * LARGEST.height, LARGEST.height, TALLEST);
    if (this.view && width === this.size.width && height === this.size.height) return;
    this.size = { width, height };
    sizeCanvas(this.canvas, width, height + STRIP);
    const axes = drawing.select(this.root.querySelector("svg"));
    axes.attr("width", MARGIN.left + width).attr("height", MARGIN.top + STRIP + height);
    const { view } = this;
    if (!zoomed) this.view = { x0: 0, x1: this.widest, y0: 0, y1: this.highest };
    else this.look(view.x0, view.y0, view.x1 - view.x0, view.y1 - view.y0);
    this.recolour();
  }

  recolour() {
    this.palette = paletteOf(this.chart, this.root, this.shown.late);
    for (const swatch of this.root.querySelectorAll("[data-hue]")) {
      swatch.style.background = this.palette.hues[swatch.dataset.hue % HUES];
    }
    this.draw();
  }

  get widest() {
    return Math.max(this.shown.columns.length, this.size.width / LARGEST.width);
  }

  get highest() {
    return Math.max(this.shown.rows.length, this.size.height / LARGEST.height);
  }

  /** Whether less than everything is seen. */
  get zoomed() {
    return this.view.x1 - this.view.x0 < this.widest - 1e-6 || this.view.y1 - this.view.y0 < this.highest - 1e-6;
  }

  whole() {
    this.look(0, 0, this.widest, this.highest);
  }

  /** Look at the window from (x0, y0), as large as is sensible. */
  look(x0, y0, wide, high) {
    wide = clamp(wide, Math.min(this.size.width / LARGEST.width, this.widest), this.widest);
    high = clamp(high, Math.min(this.size.height / LARGEST.height, this.highest), this.highest);
    x0 = clamp(x0, 0, this.widest - wide);
    y0 = clamp(y0, 0, this.highest - high);
    this.view = { x0, x1: x0 + wide, y0, y1: y0 + high };
    this.draw();
  }

  /** Make everything `factor` times as large around a point of the canvas, given in parts of its size. */
  scale(factor, x = 0.5, y = 0.5) {
    const { x0, x1, y0, y1 } = this.view;
    const wide = clamp((x1 - x0) / factor, Math.min(this.size.width / LARGEST.width, this.widest), this.widest);
    const high = clamp((y1 - y0) / factor, Math.min(this.size.height / LARGEST.height, this.highest), this.highest);
    this.look(x0 + (x1 - x0 - wide) * x, y0 + (y1 - y0 - high) * y, wide, high);
  }

  /** Move by a part of what is seen. */
  pan(x, y) {
    const { x0, x1, y0, y1 } = this.view;
    this.look(x0 + (x1 - x0) * x, y0 + (y1 - y0) * y, x1 - x0, y1 - y0);
  }

  drawNow() {
    const ratio = devicePixelRatio || 1;
    this.context.setTransform(ratio, 0, 0, ratio, 0, 0);
    paint(this.context, this.shown, this.view, this.size, this.palette, { ratio, cursor: this.cursor });
    this.canvas.style.touchAction = this.zoomed ? "none" : "pan-y";
    this.axes();
    const { x0, x1, y0, y1 } = this.view;
    this.root.dataset.view = [x0, x1, y0, y1].map((edge) => edge.toFixed(2)).join(" ");
  }

  axes() {
    const axes = drawing.select(this.root.querySelector("svg"));
    const { view, size, shown } = this;
    // Columns count from 1, as people do; rows are places, which ranks are told from.
    const x = drawing.scaleLinear([view.x0 + 0.5, view.x1 + 0.5], [0, size.width]);
    const y = drawing.scaleLinear([view.y0 - 0.5, view.y1 - 0.5], [0, size.height]);
    const whole = (scale, count, first, last) => {
      const ticks = scale.ticks(count).filter((tick) => Number.isInteger(tick) && tick >= first && tick <= last);
      return ticks.length || last < first ? ticks : [first];
    };
    const across = whole(x, Math.min(size.width / 55, 20), 1, shown.columns.length);
    const down = whole(y, Math.min(size.height / 24, 12), 0, shown.rows.length - 1);
    const place = (column) => (this.chart.place[shown.columns[column - 1]] + 1).toLocaleString("en");
    axes
      .select(".across")
      .attr("transform", `translate(${MARGIN.left}, ${MARGIN.top})`)
      .call(drawing.axisTop(x).tickValues(across).tickFormat(place).tickSizeOuter(0));
    axes
      .select(".down")
      .attr("transform", `translate(${MARGIN.left}, ${MARGIN.top + STRIP})`)
      .call(drawing.axisLeft(y).tickValues(down).tickFormat((row) => `rank ${this.chart.ranks[shown.rows[row]]}`).tickSizeOuter(0));
  }

  /** Tell of what is under a point of the cells: of the worst, where several share a pixel. */
  point(x, y) {
    const { view, size, shown } = this;
    const [wide, high] = [(view.x1 - view.x0) / size.width, (view.y1 - view.y0) / size.height];
    const [row, column] = [Math.floor(view.y0 + y * high), Math.floor(view.x0 + x * wide)];
    if (row < 0 || column < 0 || row >= shown.rows.length || column >= shown.columns.length) return this.say(null);
    const spot = shown.spots.find((one) => Math.abs(one.column + 0.5 - view.x0 - x * wide) < Math.max(0.5, 4 * wide) && Math.abs(one.row + 0.5 - view.y0 - y * high) < Math.max(0.5, 4 * high));
    const [rows, columns] = [Math.max(1, Math.ceil(high)), Math.max(1, Math.ceil(wide))];
    const worst = spot ? [spot.row, spot.column] : shown.worst(row, column, rows, columns);
    const shared = !spot && rows * columns > 1 ? `the worst of ${rows} x ${columns} calls here; zoom in for each` : "";
    return this.say(worst, shared, x, y);
  }

  /** Put what is said of a cell beside it; null puts nothing. */
  say(cell, note = "", x = 0, y = 0) {
    this.tip.hidden = cell === null;
    if (cell === null) return;
    const [title, lines] = cellWords(this.shown, ...cell);
    showTip(this, title, [...lines, note].filter(Boolean), x, y);
  }

  moves(step) {
    return {
      ArrowLeft: () => this.moveCursor(0, -step),
      ArrowRight: () => this.moveCursor(0, step),
      ArrowUp: () => this.moveCursor(-step, 0),
      ArrowDown: () => this.moveCursor(step, 0),
      PageUp: () => this.moveCursor(-20, 0),
      PageDown: () => this.moveCursor(20, 0),
      Home: () => this.moveCursor(0, -1e9),
      End: () => this.moveCursor(0, 1e9),
    };
  }

  scaleAtCursor(factor) {
    const { view, cursor } = this;
    if (!cursor) return this.scale(factor);
    return this.scale(factor, clamp((cursor.column - view.x0) / (view.x1 - view.x0), 0, 1), clamp((cursor.row - view.y0) / (view.y1 - view.y0), 0, 1));
  }

  moveCursor(rows, columns) {
    const { view, shown, cursor } = this;
    const from = cursor ?? { row: Math.floor(view.y0), column: Math.floor(view.x0) };
    const [row, column] = cursor ? [from.row + rows, from.column + columns] : [from.row, from.column];
    this.setCursor({ row: clamp(row, 0, shown.rows.length - 1), column: clamp(column, 0, shown.columns.length - 1) });
  }

  /** Put the cursor on a cell, bring it into view, and tell of it. */
  setCursor(cursor) {
    this.cursor = cursor;
    if (cursor === null) {
      this.say(null);
      return this.draw();
    }
    const { x0, x1, y0, y1 } = this.view;
    const [wide, high] = [x1 - x0, y1 - y0];
    this.look(clamp(x0, cursor.column + 1 - wide, cursor.column), clamp(y0, cursor.row + 1 - high, cursor.row), wide, high);
    const [title, lines] = cellWords(this.shown, cursor.row, cursor.column);
    this.live.textContent = [title, ...lines].join("; ");
    this.say([cursor.row, cursor.column], "", (cursor.column + 0.5 - this.view.x0) * (this.size.width / wide), (cursor.row + 0.5 - this.view.y0) * (this.size.height / high));
    return undefined;
  }

  /** Go to where a finding is, whatever the filter hid: to whom it names, with the other calls that it is about. */
  goTo(finding) {
    const slow = this.chart.slow.find((one) => one.finding === finding);
    if (slow) this.goToLate(slow.place);
    const spots = this.chart.spots.filter((one) => one.finding === finding);
    const spot = spots.find((one) => one.places.length) ?? spots[0];
    if (!spot) return;
    this.unfiltered(false);
    const row = spot.places[0] ?? 0;
    const [wide, high] = [this.size.width / LARGEST.width, this.size.height / LARGEST.height];
    const [left, right] = [Math.min, Math.max].map((of) => of(...spots.map((one) => one.column)));
    const near = right - left + 5 <= wide * FARTHEST;
    const across = near ? Math.max(wide, right - left + 5) : wide;
    this.look((near ? (left + right) / 2 : spot.column) + 0.5 - across / 2, row + 0.5 - high / 2, across, high);
    this.arrive(row, spot.column);
  }

  /** To the call to which a rank came latest, among all calls in colours that say how late ranks came. */
  goToLate(place) {
    this.unfiltered(true);
    const { late, width } = this.chart;
    const own = late.subarray(place * width, (place + 1) * width);
    this.arrive(place, own.indexOf(own.reduce((one, other) => Math.max(one, other))));
  }

  unfiltered(late) {
    const { group, op, ranks, colour } = this.root.querySelector("form").elements;
    [group.value, op.value, ranks.value] = ["-1", "-1", ""];
    if (colour) colour.value = late ? "late" : "op";
    this.filter = { line: -1, op: -1, ranks: null, late };
    this.apply();
  }

  arrive(row, column) {
    this.root.scrollIntoView({ block: "start" });
    this.canvas.focus({ preventScroll: true });
    this.setCursor({ row, column });
  }
}
