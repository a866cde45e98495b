// How the timeline is painted: a pixel a block of cells where they are small; marks and letters where they are not.

const SMALLEST_MARK = 9;
const SMALLEST_LETTER = 13;
const [OUTSIDE, DONE, ABSENT, OPEN, FAILED] = [0, 1, 2, 3, 4];
const HUES = 8;
const STRIP = 10;

/** The colours of the page's theme, as the browser works them out: red, green, blue, alpha of a name. */
function coloursOf(element) {
  const holder = element.appendChild(document.createElement("span"));
  const probe = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const read = (name) => {
    holder.style.color = `var(--${name})`;
    // Whatever way the browser writes a colour, a pixel has it in numbers.
    probe.clearRect(0, 0, 1, 1);
    probe.fillStyle = getComputedStyle(holder).color;
    probe.fillRect(0, 0, 1, 1);
    return [...probe.getImageData(0, 0, 1, 1).data];
  };
  return { read, end: () => holder.remove() };
}

const css = (/** @type {number[]} */ [red, green, blue, alpha]) => `rgb(${red} ${green} ${blue} / ${alpha / 255})`;
const packed = (/** @type {number[]} */ [red, green, blue, alpha]) => ((alpha << 24) | (blue << 16) | (green << 8) | red) >>> 0;

/** What is painted with: a colour for each kind, or for each lateness, and those of marks. */
function paletteOf(chart, element, late) {
  const colours = coloursOf(element);
  const colour = colours.read;
  const hues = Array.from({ length: HUES }, (_, hue) => colour(`op-${hue}`));
  const marks = { [OUTSIDE]: [0, 0, 0, 0], [ABSENT]: colour("absent"), [OPEN]: colour("open"), [FAILED]: colour("failed") };
  const ofKind = chart.kinds.map(([mark, op]) => marks[mark] ?? hues[op % HUES]);
  const names = ["surface", "ink", "accent", "absent", "open", "failed", "on-op", "on-mark"];
  const named = Object.fromEntries(names.map((name) => [name, css(colour(name))]));
  const ramp = lateRamp(colour("early"), colour("late"));
  colours.end();
  return { named, hues: hues.map(css), pixels: Uint32Array.from((late ? ramp : ofKind).map(packed)) };
}

/** Colours from early to late for each byte of lateness; 0 is no time. Below 10 microseconds nobody is late. */
function lateRamp(early, late) {
  return Array.from({ length: 256 }, (_, byte) => {
    const part = Math.min(Math.max((byte - 27) / (220 - 27), 0), 1);
    return byte ? early.map((channel, at) => Math.round(channel + (late[at] - channel) * part)) : [0, 0, 0, 0];
  });
}

/** Paint the window `view` {x0, x1, y0, y1}, in cells, on a canvas of `width` by `height` CSS pixels below the strip. */
function paint(context, shown, view, size, palette, extras) {
  const cell = { width: size.width / (view.x1 - view.x0), height: size.height / (view.y1 - view.y0) };
  context.clearRect(0, 0, size.width, size.height + STRIP);
  paintBlocks(context, shown, view, cell, palette, extras.ratio);
  context.save();
  context.beginPath();
  context.rect(0, STRIP, size.width, size.height);
  context.clip();
  if (cell.width >= SMALLEST_MARK && cell.height >= SMALLEST_MARK) paintCells(context, shown, view, cell, palette);
  paintSpots(context, shown, view, cell, palette);
  if (extras.cursor) paintCursor(context, view, cell, extras.cursor, palette);
  context.restore();
  paintStrip(context, shown, view, cell, palette);
}

const levelFor = (pixels) => Math.max(0, Math.ceil(Math.log2(1 / pixels)));

function paintBlocks(context, shown, view, cell, palette, ratio) {
  const [x, y] = [levelFor(cell.width * ratio), levelFor(cell.height * ratio)];
  const level = shown.level(x, y);
  const [left, top] = [Math.max(0, Math.floor(view.x0) >> x), Math.max(0, Math.floor(view.y0) >> y)];
  const right = Math.min(level.width, (Math.ceil(view.x1) >> x) + 1);
  const bottom = Math.min(level.height, (Math.ceil(view.y1) >> y) + 1);
  const [width, height] = [right - left, bottom - top];
  if (width <= 0 || height <= 0) return;
  const image = new ImageData(width, height);
  const pixels = new Uint32Array(image.data.buffer);
  for (let row = 0; row < height; row++) {
    const from = (top + row) * level.width + left;
    for (let column = 0; column < width; column++) {
      pixels[row * width + column] = palette.pixels[level.numbers[from + column]];
    }
  }
  const blocks = document.createElement("canvas");
  [blocks.width, blocks.height] = [width, height];
  blocks.getContext("2d").putImageData(image, 0, 0);
  context.save();
  context.beginPath();
  context.rect(0, STRIP, cell.width * (view.x1 - view.x0), cell.height * (view.y1 - view.y0));
  context.clip();
  context.imageSmoothingEnabled = false;
  const [wide, high] = [cell.width * 2 ** x, cell.height * 2 ** y];
  context.drawImage(blocks, left * wide - view.x0 * cell.width, STRIP + top * high - view.y0 * cell.height, width * wide, height * high);
  context.restore();
}

/** Each cell in view: called with its box, row and column. */
function eachCell(shown, view, cell, draw) {
  const [bottom, right] = [Math.min(shown.rows.length, Math.ceil(view.y1)), Math.min(shown.columns.length, Math.ceil(view.x1))];
  for (let row = Math.max(0, Math.floor(view.y0)); row < bottom; row++) {
    for (let column = Math.max(0, Math.floor(view.x0)); column < right; column++) {
      const [x, y] = [(column - view.x0) * cell.width, STRIP + (row - view.y0) * cell.height];
      draw(x, y, row, column);
    }
  }
}

/** Gaps between cells, the marks that tell without colour how calls went, and a letter for the op. */
function paintCells(context, shown, view, cell, palette) {
  const { width, height } = cell;
  const letters = width >= SMALLEST_LETTER && height >= SMALLEST_LETTER;
  context.textAlign = "center";
  context.textBaseline = "middle";
  context.font = "600 11px ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace";
  eachCell(shown, view, cell, (x, y, row, column) => {
    const [mark, op] = shown.chart.kinds[shown.chart.cell(shown.rows[row], shown.columns[column])];
    context.strokeStyle = palette.named.surface;
    context.lineWidth = 1;
    context.strokeRect(x + 0.5, y + 0.5, width - 1, height - 1);
    if (!shown.late) paintMark(context, mark, x, y, cell, palette);
    if (letters && mark !== OUTSIDE && mark !== ABSENT) {
      if (mark > ABSENT && !shown.late) {
        context.fillStyle = palette.named[mark === OPEN ? "open" : "failed"];
        context.fillRect(x + width / 2 - 6, y + height / 2 - 7, 12, 14);
      }
      context.fillStyle = palette.named[shown.late ? "ink" : mark === DONE ? "on-op" : "on-mark"];
      context.fillText(shown.chart.letters[op], x + width / 2, y + height / 2 + 0.5);
    }
  });
}

/** Open calls are hatched, failed ones crossed out, those that were never made hollow. */
function paintMark(context, mark, x, y, { width, height }, palette) {
  if (mark === DONE || mark === OUTSIDE) return;
  context.save();
  context.beginPath();
  context.rect(x + 1, y + 1, width - 2, height - 2);
  context.clip();
  context.beginPath();
  context.strokeStyle = palette.named.surface;
  context.lineWidth = 1.5;
  if (mark === OPEN) {
    for (let step = -height; step < width; step += 6) {
      context.moveTo(x + step, y + height);
      context.lineTo(x + step + height, y);
    }
  } else if (mark === FAILED) {
    context.moveTo(x, y);
    context.lineTo(x + width, y + height);
    context.moveTo(x + width, y);
    context.lineTo(x, y + height);
  } else {
    context.fillStyle = palette.named.surface;
    context.fillRect(x + 3, y + 3, width - 6, height - 6);
  }
  context.stroke();
  context.restore();
}

/** A frame around what findings name, never smaller than can be seen. */
function paintSpots(context, shown, view, cell, palette) {
  for (const { row, column } of shown.spots ?? []) {
    const [wide, high] = [Math.max(cell.width, 7), Math.max(cell.height, 7)];
    const x = (column + 0.5 - view.x0) * cell.width - wide / 2;
    const y = STRIP + (row + 0.5 - view.y0) * cell.height - high / 2;
    for (const [line, colour] of [[5, palette.named.surface], [2.5, palette.named.ink]]) {
      context.lineWidth = line;
      context.strokeStyle = colour;
      context.strokeRect(x, y, wide, high);
    }
  }
}

function paintCursor(context, view, cell, { row, column }, palette) {
  context.lineWidth = 2;
  context.setLineDash([4, 3]);
  context.strokeStyle = palette.named.accent;
  const [wide, high] = [Math.max(cell.width, 9), Math.max(cell.height, 9)];
  const [x, y] = [(column + 0.5 - view.x0) * cell.width, STRIP + (row + 0.5 - view.y0) * cell.height];
  context.strokeRect(x - wide / 2, y - high / 2, wide, high);
  context.setLineDash([]);
}

/** Above the cells: the process group of each column, and a triangle above each finding. */
function paintStrip(context, shown, view, cell, palette) {
  const { chart, columns } = shown;
  const step = Math.max(1, Math.floor(1 / cell.width));
  for (let column = Math.max(0, Math.floor(view.x0)); column < Math.min(columns.length, view.x1); column += step) {
    context.fillStyle = palette.hues[(chart.line[columns[column]] + 3) % HUES];
    context.fillRect((column - view.x0) * cell.width, STRIP - 5, Math.max(cell.width * step - (cell.width > 4 ? 1 : 0), 1), 4);
  }
  context.fillStyle = palette.named.ink;
  for (const column of shown.found ?? []) {
    const x = (column + 0.5 - view.x0) * cell.width;
    context.beginPath();
    context.moveTo(x - 5, 0);
    context.lineTo(x + 5, 0);
    context.lineTo(x, STRIP - 1);
    context.fill();
  }
}
