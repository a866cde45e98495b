"""Draw what a terminal shows of a real run: ``python docs/draw_report.py`` draws the planted bug for the README.

The command's own output is what is drawn, colours and all, so that a picture cannot show what users do not see.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = "examples/planted_bug.py"
PICTURE = ROOT / "docs" / "images" / "report.svg"
COLUMNS = 100
FINDINGS_EXIT = 3
LIMIT_SECONDS = 240

# Of one length on every machine: a line is broken where its path is too long.
FOLDERS = "/tmp"

# Rich's own frame, but with the fonts that are there: a picture in a page may load nothing.
FORMAT = """\
<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg" role="img" aria-label="LABEL">
<title>LABEL</title>
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

# What no two runs have in common: a picture is drawn anew only where something else has changed.
PASSING = re.compile(r"\d{4}-\d\d-\d\d|\d\d:\d\d:\d\d|\b\d+(\.\d+)? (ms|s|min)\b")


@dataclass(frozen=True, slots=True)
class Played:
    """A command that has run: its exit code, what it printed, with paths below its folder, and its report.json."""

    command: tuple[str, ...]
    exit_code: int
    screen: str
    errors: str
    report: dict[str, Any]


def main() -> int:
    """Run, draw, write; the exit code says whether the run ended as it has to."""
    played = play(("simcoll", "run", "--standalone", "--nproc-per-node", "4", SCRIPT))
    if played.exit_code != FINDINGS_EXIT:
        print(f"draw_report: simcoll run exited {played.exit_code}, expected {FINDINGS_EXIT}:\n{played.errors}")
        return 1
    write(PICTURE, draw(played))
    return 0


def play(command: Sequence[str]) -> Played:
    """A command of simcoll on a script, its last word, in a folder of its own, as on a colour terminal of one width."""
    with tempfile.TemporaryDirectory(prefix="s-", dir=FOLDERS) as name:
        folder = Path(name).resolve()
        script = folder / command[-1]
        script.parent.mkdir(parents=True)
        shutil.copy(ROOT / command[-1], script)
        done = _run([command[1], "--out", "out", *command[2:]], folder)
        report = folder / "out" / "report.json"
        document = json.loads(report.read_text(encoding="utf-8")) if report.exists() else {}
        return Played(tuple(command), done.returncode, without_prefix(done.stdout, f"{folder}/"), done.stderr, document)


def _run(arguments: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "NO_COLOR"}
    environment |= {"FORCE_COLOR": "1", "TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "OMP_NUM_THREADS": "1"}
    simcoll = Path(sys.executable).with_name("simcoll")
    return subprocess.run(
        [str(simcoll), *arguments],
        cwd=folder,
        env=environment,
        text=True,
        capture_output=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )


def without_prefix(screen: str, prefix: str) -> str:
    """Paths as they are below the folder, and the right edge of the boxes where it was."""
    return "\n".join(_shortened(line, prefix) for line in screen.splitlines())


def _shortened(line: str, prefix: str) -> str:
    if "│" not in line:
        return line.replace(prefix, "")
    gap = " " * (len(prefix) * line.count(prefix))
    text, edge, rest = line.replace(prefix, "").rpartition(" ")
    return f"{text}{edge}{gap}{rest}"


def draw(played: Played) -> str:
    """The screen as SVG, below the command that made it; its label has the findings' codes, names and culprits."""
    label = escape(label_of(played), quote=True).replace("{", "{{").replace("}", "}}")
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        console = Console(record=True, width=COLUMNS, file=nowhere, force_terminal=True, color_system="truecolor")
        console.print(Text(f"$ {' '.join(played.command)}", style="bold"))
        console.print(Text.from_ansi(played.screen.rstrip()))
        return console.export_svg(title="simcoll", code_format=FORMAT.replace("LABEL", label), unique_id="report")


def label_of(played: Played) -> str:
    """What the picture shows, in words."""
    found = "; ".join(_named(finding) for finding in played.report["findings"])
    return f"The report of simcoll {played.command[1]}: finding {found}"


def _named(finding: dict[str, Any]) -> str:
    ranks = [str(rank) for rank in finding["culprits"]]
    culprits = f"culprit rank {ranks[0]}" if len(ranks) == 1 else f"culprit ranks {', '.join(ranks)}"
    return f"{finding['code']} {finding['name']}, {culprits if ranks else 'no culprit by majority'}"


def write(picture: Path, drawn: str) -> bool:
    """Write a picture, unless the one that is there differs in times alone; whether it was written."""
    if picture.exists() and content(picture.read_text(encoding="utf-8")) == content(drawn):
        return False
    picture.parent.mkdir(parents=True, exist_ok=True)
    picture.write_text(drawn, encoding="utf-8")
    return True


def content(picture: str) -> list[tuple[str, str, str]]:
    """The findings that a picture shows, piece by piece with their colours, without times.

    What stands above them says where each rank was when the launcher ended it: that is a race after a failure.
    """
    pieces = [
        (piece.tag, piece.get("class", ""), PASSING.sub("T", (piece.text or "").replace("\u00a0", " ")).strip())
        for piece in ElementTree.fromstring(picture).iter()
        if (piece.text or "").strip()
    ]
    box = next((index for index, (_, _, text) in enumerate(pieces) if text.startswith("╭")), 0)
    return pieces[box:]


if __name__ == "__main__":
    sys.exit(main())
