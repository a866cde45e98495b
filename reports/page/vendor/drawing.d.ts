// What drawing.js, the bundle of d3, defines for the scripts of the page; d3's own types are not among its packages.
// biome-ignore lint/suspicious/noExplicitAny: it stands for all of d3
declare const drawing: Record<string, any>;
