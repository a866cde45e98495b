// What report.html uses of d3. `make vendor` bundles it into drawing.js.
export { axisLeft, axisTop } from "d3-axis";
export { scaleLinear } from "d3-scale";
export { pointer, select } from "d3-selection";
export { zoom } from "d3-zoom";
