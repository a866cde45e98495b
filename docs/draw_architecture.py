"""Draw docs/images/architecture.svg from docs/architecture.dot: ``make diagram``. Needs dot, of Graphviz.

Graphviz places and draws; colours come from a style sheet in the picture, for light and for dark. The picture has a
background of its own, so that it can be read on a page that ignores the reader's choice of light or dark.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent
SOURCE, PICTURE = DOCS / "architecture.dot", DOCS / "images" / "architecture.svg"
TITLE = "The parts of simcoll and what passes between them"
DESCRIPTION = (
    "In every rank the wrapped process group reads a call by its row in the table of collectives, writes it to a black"
    " box, and proves it with one sum before the real group runs it. Ranks in one process and dry runs leave the same"
    " records. The monitor watches the black boxes from outside. The verifier turns the records of a run into one"
    " report, which the renderers show; the same records are priced on a topology."
)
STYLE = """
    svg { color-scheme: light dark; --ground: #ffffff; --ink: #1a1d23; --card: #f6f7f9; --line: #545b68;
      --outside: #ffffff; --value: #e3edfd; --room: #0b57d0; }
    @media (prefers-color-scheme: dark) { svg { --ground: #14171c; --ink: #e9ecf1; --card: #1c2027; --line: #a4acba;
      --outside: #14171c; --value: #21334f; --room: #8ab4f8; } }
    text { fill: var(--ink); font-family: system-ui, "DejaVu Sans", sans-serif; }
    text.file { font-family: ui-monospace, "DejaVu Sans Mono", monospace; font-size: 10.5px; }
    .ground { fill: var(--ground); }
    .part path { fill: var(--card); stroke: var(--line); }
    .outside path { fill: var(--outside); stroke-dasharray: 4 3; }
    .value path { fill: var(--value); }
    .room path { fill: none; stroke: var(--room); }
    .room text { fill: var(--room); font-weight: 600; }
    .way path { fill: none; stroke: var(--line); }
    .way polygon { fill: var(--line); stroke: var(--line); }
"""
FILE = re.compile(r"<text (?=[^>]*>[\w/]+(?:\.py|/)</text>)")


def drawn(source: str) -> str:
    """The picture that dot draws from the source."""
    answer = subprocess.run(["dot", "-Tsvg"], input=source, capture_output=True, text=True, check=True)
    return answer.stdout


def dressed(picture: str) -> str:
    """A picture of dot's with a name, a description and colours that follow the reader's choice."""
    body = picture[picture.index("<svg") :]
    body = re.sub(r"<!--.*?-->\n?|<title>.*?</title>\n?", "", body, flags=re.DOTALL)
    body = re.sub(r' (?:fill|stroke|font-family|id|xmlns:xlink)="[^"]*"', "", body)
    body = re.sub(r"<polygon points", '<polygon class="ground" points', body, count=1)
    body = FILE.sub('<text class="file" ', body)
    head, _, rest = body.partition(">")
    width, height = re.findall(r'(?:width|height)="(\d+)pt"', head)
    head = re.sub(r'width="\d+pt" height="\d+pt"', f'width="{width}" height="{height}"', head)
    named = f'{" ".join(head.split())} role="img" aria-labelledby="name told">'
    return (
        f'{named}\n<title id="name">{TITLE}</title>\n<desc id="told">{DESCRIPTION}</desc>\n<style>{STYLE}</style>{rest}'
    )


def main() -> int:
    """Write the picture."""
    if shutil.which("dot") is None:
        print("draw_architecture: no dot on the path; Debian's package graphviz has it", file=sys.stderr)
        return 2
    PICTURE.write_text(dressed(drawn(SOURCE.read_text(encoding="utf-8"))), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
