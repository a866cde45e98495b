// The chart's numbers: how they are unpacked, which of them are shown, and what is worst where many share a pixel.

const NUMBERS = { u8: Uint8Array, u16: Uint16Array, u32: Uint32Array, f64: Float64Array };

/** A typed array from {type, data}: numbers, little end first, deflated, in base64. */
async function unpack({ type, data }) {
  const text = atob(data);
  const bytes = new Uint8Array(text.length);
  for (let place = 0; place < text.length; place++) bytes[place] = text.charCodeAt(place);
  const plain = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new NUMBERS[type](await new Response(plain).arrayBuffer());
}

/** The chart of the page with its arrays unpacked. */
async function readChart(packed) {
  const chart = { ...packed };
  for (const name of ["cells", "rows", "line", "number", "message", "span", "time", "late"]) {
    chart[name] = packed[name] ? await unpack(packed[name]) : null;
  }
  chart.width = chart.line.length;
  chart.place = new Float64Array(chart.width);
  for (let column = 1; column < chart.width; column++) {
    chart.place[column] = chart.place[column - 1] + chart.span[column - 1];
  }
  chart.opOfKind = Uint16Array.from(chart.kinds, ([, op]) => op);
  chart.cell = (place, column) => chart.cells[chart.rows[place] * chart.width + column];
  return chart;
}

/** The rows and columns that a filter lets through: {line, op} (-1: all) and ranks (null: all, otherwise a test). */
function visible(chart, filter) {
  const rows = [];
  chart.ranks.forEach((rank, place) => {
    if (filter.ranks === null || filter.ranks(rank)) rows.push(place);
  });
  const ways = [...new Set(rows.map((place) => chart.rows[place]))];
  const has = (column) => ways.some((way) => chart.opOfKind[chart.cells[way * chart.width + column]] === filter.op);
  const columns = [];
  for (let column = 0; column < chart.width; column++) {
    const inLine = filter.line < 0 || chart.line[column] === filter.line;
    if (inLine && (filter.op < 0 || has(column))) columns.push(column);
  }
  return new Shown(chart, rows, columns, filter.late && chart.late !== null);
}

/** Rows and columns in the order in which they are drawn, and the greatest numbers of blocks of 2^x by 2^y cells. */
class Shown {
  constructor(chart, rows, columns, late) {
    this.chart = chart;
    this.rows = rows;
    this.columns = columns;
    this.late = late;
    this.blocks = new Map();
    // Where findings are, as the timeline sets them: cells, and columns.
    this.spots = [];
    this.found = [];
  }

  /** The number that a cell is coloured by: its kind, the worst being the greatest; or how late it came. */
  number(row, column) {
    const { chart, rows, columns } = this;
    if (this.late) return chart.late[rows[row] * chart.width + columns[column]];
    return chart.cell(rows[row], columns[column]);
  }

  /** {width, height, numbers} at 2^x columns and 2^y rows a block; worked out when it is first needed. */
  level(x, y) {
    const key = `${x},${y}`;
    if (!this.blocks.has(key)) this.blocks.set(key, x || y ? this.halved(x, y) : this.exact());
    return this.blocks.get(key);
  }

  exact() {
    const { chart, rows, columns } = this;
    const [width, height] = [columns.length, rows.length];
    const numbers = new Uint16Array(width * height);
    for (let row = 0; row < height; row++) {
      const from = (this.late ? rows[row] : chart.rows[rows[row]]) * chart.width;
      const source = this.late ? chart.late : chart.cells;
      for (let column = 0; column < width; column++) numbers[row * width + column] = source[from + columns[column]];
    }
    return { width, height, numbers };
  }

  halved(x, y) {
    const fine = x ? this.level(x - 1, y) : this.level(x, y - 1);
    const [right, down] = x ? [1, 0] : [0, 1];
    const width = (fine.width + right) >> right;
    const height = (fine.height + down) >> down;
    const numbers = new Uint16Array(width * height);
    for (let row = 0; row < height; row++) {
      for (let column = 0; column < width; column++) {
        const at = (row << down) * fine.width + (column << right);
        const beside = right ? (column << 1) + 1 < fine.width : (row << 1) + 1 < fine.height;
        const other = beside ? fine.numbers[at + (right ? 1 : fine.width)] : 0;
        numbers[row * width + column] = Math.max(fine.numbers[at], other);
      }
    }
    return { width, height, numbers };
  }

  /** The worst cell of a block of cells, as [row, column]; the first of equals. */
  worst(row, column, rows, columns) {
    let best = [row, column];
    for (let r = row; r < Math.min(row + rows, this.rows.length); r++) {
      for (let c = column; c < Math.min(column + columns, this.columns.length); c++) {
        if (this.number(r, c) > this.number(...best)) best = [r, c];
      }
    }
    return best;
  }
}

/** A test for the ranks of "0-7, 16"; null where the text is empty, undefined where it cannot be read. */
function rankTest(text) {
  const parts = text.split(/[\s,]+/).filter(Boolean);
  if (!parts.length) return null;
  const spans = parts.map((part) => /^(\d{1,9})(?:-(\d{1,9}))?$/.exec(part));
  if (spans.includes(null)) return undefined;
  return (rank) => spans.some(([, first, last]) => rank >= Number(first) && rank <= Number(last ?? first));
}
