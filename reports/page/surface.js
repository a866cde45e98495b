// What both timelines have in common: a canvas that zooms, moves, follows the theme, and tells of what is pointed at.

const clamp = (value, low, high) => Math.min(Math.max(value, low), high);

/**
 * What a timeline is, whatever it shows. One that extends it has a `view`, a `size`, and says how it does `resized`,
 * `recolour`, `drawNow`, `scale`, `pan`, `whole`, `point`, `setCursor` and `scaleAtCursor`, and which keys its `moves` have.
 */
class Surface {
  constructor(root, margin, top) {
    this.root = root;
    this.margin = margin;
    this.top = top;
    this.cursor = null;
    this.filter = { line: -1, op: -1, ranks: null, late: false };
    this.canvas = root.querySelector("canvas");
    this.context = this.canvas.getContext("2d");
    this.tip = root.querySelector(".tip");
    this.live = root.querySelector(".live");
  }

  /** Listen, from now on. */
  start() {
    const at = (event) => {
      const [x, y] = drawing.pointer(event, this.canvas);
      this.point(x, y - this.top);
    };
    this.canvas.addEventListener("pointermove", (event) => event.buttons || at(event));
    this.canvas.addEventListener("click", at);
    this.canvas.addEventListener("pointerleave", () => (this.tip.hidden = true));
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    watchZoom(this);
    watchTheme(this);
    new ResizeObserver(() => this.resized()).observe(this.root.querySelector(".plot"));
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const does = {
      "+": () => this.scaleAtCursor(1.6),
      "=": () => this.scaleAtCursor(1.6),
      "-": () => this.scaleAtCursor(1 / 1.6),
      0: () => this.whole(),
      Escape: () => this.setCursor(null),
      ...this.moves(event.shiftKey ? 10 : 1),
    };
    if (!Object.hasOwn(does, event.key)) return;
    does[event.key]();
    event.preventDefault();
  }

  draw() {
    cancelAnimationFrame(this.frame);
    this.frame = requestAnimationFrame(() => this.drawNow());
  }

  /** The width that the page has for the canvas. */
  get room() {
    return Math.max(this.root.querySelector(".plot").clientWidth - this.margin.left - 8, 80);
  }
}

/** As many pixels as the screen has for so many CSS pixels. */
function sizeCanvas(canvas, width, height) {
  const ratio = devicePixelRatio || 1;
  [canvas.width, canvas.height] = [Math.round(width * ratio), Math.round(height * ratio)];
  [canvas.style.width, canvas.style.height] = [`${width}px`, `${height}px`];
}

/** Wheel, drag, pinch and double click, which d3 tells apart; each moves the window by what has changed since. */
function watchZoom(timeline) {
  let before = { k: 1, x: 0, y: 0 };
  const zoom = drawing
    .zoom()
    .filter((event) => {
      if (event.type === "wheel") return timeline.zoomed || event.deltaY < 0;
      return event.touches ? event.touches.length > 1 || timeline.zoomed : !event.button;
    })
    .on("zoom", ({ transform }) => {
      const { width, height } = timeline.size;
      const factor = transform.k / before.k;
      if (Math.abs(factor - 1) > 1e-9) {
        const point = ["x", "y"].map((axis) => (transform[axis] - before[axis] * factor) / (1 - factor));
        timeline.scale(factor, clamp(point[0] / width, 0, 1), clamp((point[1] - timeline.top) / height, 0, 1));
      } else {
        timeline.pan((before.x - transform.x) / width, (before.y - transform.y) / height);
      }
      before = transform;
      timeline.tip.hidden = true;
    });
  if (matchMedia("(prefers-reduced-motion: reduce)").matches) zoom.duration(0);
  drawing.select(timeline.canvas).call(zoom);
}

/** Draw anew in other colours; paper is light, and does not wait for the next frame. */
function watchTheme(timeline) {
  const printing = (begins) => {
    document.documentElement.toggleAttribute("data-printing", begins);
    timeline.recolour();
    timeline.drawNow();
  };
  document.addEventListener("themechange", () => timeline.recolour());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => timeline.recolour());
  addEventListener("beforeprint", () => printing(true));
  addEventListener("afterprint", () => printing(false));
}

/** A title and lines beside a point of the canvas. */
function showTip(timeline, title, lines, x, y) {
  const { tip, root, margin } = timeline;
  tip.replaceChildren(node("strong", title), ...lines.map((line) => node("span", line)));
  const wide = root.querySelector(".plot").clientWidth;
  const left = clamp(margin.left + x + 14, 0, Math.max(wide - tip.offsetWidth - 4, 0));
  tip.style.left = `${left}px`;
  tip.style.top = `${margin.top + timeline.top + y + 18}px`;
}

/** The buttons of a timeline do what its methods of those names do. */
function startButtons(timeline) {
  const does = {
    in: () => timeline.scaleAtCursor(1.6),
    out: () => timeline.scaleAtCursor(1 / 1.6),
    whole: () => timeline.whole(),
    step: () => timeline.step(),
    left: () => timeline.pan(-0.4, 0),
    right: () => timeline.pan(0.4, 0),
  };
  for (const button of timeline.root.querySelectorAll("[data-do]")) {
    button.addEventListener("click", does[button.dataset.do]);
  }
}
