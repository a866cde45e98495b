// What drawing.js, the bundle of d3, defines for the scripts of the page; d3's own types are not among its packages.
declare const drawing: Record<string, any>;
