"""Draw the picture in the README from a real run: the planted bug on four Gloo ranks, as a terminal shows it.

The command's own output is what is drawn, colours and all, so that the picture cannot show what users do not see.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = "examples/planted_bug.py"
PICTURE = ROOT / "docs" / "images" / "report.svg"
COLUMNS = 100
FINDINGS_EXIT = 3

# Rich's own frame, but with the fonts that are there: a picture in a README may load nothing.
FORMAT = """\
<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg" role="img"
     aria-label="The report of simcoll run: finding SC104, reduce-op-mismatch, culprit rank 2">
<style>
.{unique_id}-matrix {{
    font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace;
    font-size: {char_height}px; line-height: {line_height}px; font-variant-east-asian: full-width;
}}
.{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: sans-serif; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def main() -> int:
    """Run, draw, write; the exit code says whether the run ended as it has to."""
    with tempfile.TemporaryDirectory(prefix="s-") as folder:
        done = run(Path(folder).resolve())
        screen = without_prefix(done.stdout, f"{Path(folder).resolve()}/")
    if done.returncode != FINDINGS_EXIT:
        print(f"draw_report: simcoll run exited {done.returncode}, expected {FINDINGS_EXIT}:\n{screen}{done.stderr}")
        return 1
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(draw(screen), encoding="utf-8")
    return 0


def run(folder: Path) -> subprocess.CompletedProcess[str]:
    """The planted bug under ``simcoll run`` in a folder of its own, as if on a colour terminal of a fixed width."""
    script = folder / SCRIPT
    script.parent.mkdir()
    shutil.copy(ROOT / SCRIPT, script)
    environment = {key: value for key, value in os.environ.items() if key != "NO_COLOR"}
    environment |= {"FORCE_COLOR": "1", "TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "OMP_NUM_THREADS": "1"}
    simcoll = Path(sys.executable).with_name("simcoll")
    command = [str(simcoll), "run", "--standalone", "--nproc-per-node", "4", SCRIPT]
    return subprocess.run(command, cwd=folder, env=environment, text=True, capture_output=True, check=False)


def without_prefix(screen: str, prefix: str) -> str:
    """Paths as they are below the folder, and the right edge of the boxes where it was."""
    return "\n".join(_shortened(line, prefix) for line in screen.splitlines())


def _shortened(line: str, prefix: str) -> str:
    gap = " " * (len(prefix) * line.count(prefix))
    text, edge, rest = line.replace(prefix, "").rpartition(" ")
    return f"{text}{edge}{gap}{rest}"


def draw(screen: str) -> str:
    """The screen as SVG, below the command that made it."""
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        console = Console(record=True, width=COLUMNS, file=nowhere, force_terminal=True, color_system="truecolor")
        console.print(Text(f"$ simcoll run --nproc-per-node 4 {SCRIPT}", style="bold"))
        console.print(Text.from_ansi(screen.rstrip()))
        return console.export_svg(title="simcoll", code_format=FORMAT, unique_id="report")


if __name__ == "__main__":
    sys.exit(main())
