// Bundles what report.html uses of d3 into drawing.js, and writes the licences of everything that went into it.
import { readFileSync, writeFileSync } from "node:fs";
import { build } from "esbuild";

const made = await build({
  entryPoints: ["drawing.entry.js"],
  outfile: "drawing.js",
  bundle: true,
  minify: true,
  format: "iife",
  globalName: "drawing",
  target: "es2022",
  legalComments: "none",
  metafile: true,
  banner: { js: "/* Parts of d3, bundled by esbuild; licences and versions: drawing.LICENSES.txt */" },
});

const inside = Object.keys(made.metafile.inputs).map((path) => path.match(/node_modules\/([^/]+)\//)?.[1]);
const packages = [...new Set(inside.filter(Boolean))].sort();
const licences = packages.map((name) => {
  const folder = `node_modules/${name}`;
  const { version, license } = JSON.parse(readFileSync(`${folder}/package.json`, "utf8"));
  return `${name} ${version} (${license})\n\n${readFileSync(`${folder}/LICENSE`, "utf8").trim()}\n`;
});
writeFileSync("drawing.LICENSES.txt", licences.join(`\n${"-".repeat(80)}\n\n`));
