"""Writes docs/gallery.md anew from the programs of examples/findings and their pictures: ``python docs/gallery.py``.

A program's docstring says what goes wrong, the command (``Run:``) and what is found (``simcoll: SC104 rank 2``, with
``, a warning`` where it is no error). A comment that begins with ``Bug:`` stands above the faulty line.
"""

from __future__ import annotations

import ast
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from simcoll.reports.rules import anchor
from simcoll.verifier.findings.rules import RULES

DOCS = Path(__file__).resolve().parent
PROGRAMS = DOCS.parent / "examples" / "findings"
PICTURES = DOCS / "images" / "findings"
PAGE = DOCS / "gallery.md"

_MARK = re.compile(r"^ *# Bug: ", re.MULTILINE)
_OUTCOME = re.compile(r"^simcoll: (SC\d{3})((?: rank \d+)*)(, a warning)?$", re.MULTILINE)

_HEAD = """\
# Gallery of findings

For each finding code this page shows a program that looks correct, and the report on it. The programs are in
[examples/findings](../examples/findings); they run from a checkout on real Gloo ranks, SC107 in a dry run. `make
gallery` draws the pictures from such runs, and the tests compare them with another run.
A [rule](rules/README.md) explains a code in general, a [scenario](scenarios.md) plays it on simulated ranks.

"""


@dataclass(frozen=True, slots=True)
class Example:
    """A program of the gallery, and what its docstring says; ``excerpt`` is the function with the faulty line."""

    code: str
    said: str
    command: tuple[str, ...]
    culprits: tuple[int, ...]
    warning: bool
    excerpt: str

    @property
    def picture(self) -> Path:
        """Where its report is drawn."""
        return PICTURES / f"{self.code}.svg"


def examples() -> list[Example]:
    """Every program, by code."""
    return [example(path) for path in sorted(PROGRAMS.glob("*.py"))]


def example(path: Path) -> Example:
    """Read a program; raises ValueError if its docstring or its mark is missing."""
    source = path.read_text(encoding="utf-8")
    text = ast.get_docstring(ast.parse(source)) or ""
    said, run, rest = text.partition("\n\nRun: ")
    outcome = _OUTCOME.search(text)
    if not run or outcome is None or outcome[1] != path.stem:
        raise ValueError(f"{path.name}: expected 'Run: COMMAND' and 'simcoll: {path.stem}' at the end of the docstring")
    culprits = tuple(int(rank) for rank in re.findall(r"\d+", outcome[2]))
    command = tuple(shlex.split(rest.splitlines()[0]))
    return Example(outcome[1], said, command, culprits, outcome[3] is not None, faulty(path.name, source))


def faulty(name: str, source: str) -> str:
    """The function with the one line that is marked."""
    marks = [source.count("\n", 0, found.start()) + 1 for found in _MARK.finditer(source)]
    functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]
    around = [node for node in functions if len(marks) == 1 and node.lineno < marks[0] <= (node.end_lineno or 0)]
    if not around:
        raise ValueError(f"{name}: expected one comment '# Bug: ...', inside a function; found {len(marks)}")
    node = max(around, key=lambda node: node.lineno)
    return "\n".join(source.splitlines()[node.lineno - 1 : node.end_lineno])


def page() -> str:
    """The whole page as Markdown."""
    found = examples()
    rows = [f"| [{one.code}](#{anchor(RULES[one.code])}) | {RULES[one.code].name} | {_title(one)} |" for one in found]
    table = "| code | name | what goes wrong |\n|---|---|---|\n" + "\n".join(rows) + "\n"
    return _HEAD + table + "".join(_entry(one) for one in found)


def _title(one: Example) -> str:
    return " ".join(one.said.partition("\n\n")[0].split())


def _entry(one: Example) -> str:
    rule, script = RULES[one.code], one.command[-1]
    scenario = f" ·\n[the scenario](../examples/scenarios/{one.code}.toml): `simcoll simulate {one.code}`"
    played = scenario if not rule.unplayed else ""
    return f"""
## {one.code} {rule.name}

{one.said}

<!-- not run: an excerpt; tests/documents/test_gallery.py runs the whole program -->
```python
{one.excerpt}
```

![{label_of(one.picture)}](images/findings/{one.code}.svg)

`{shlex.join(one.command)}` · [the program](../{script}) · [the rule](rules/{one.code}.md){played}
"""


def label_of(picture: Path) -> str:
    """What a picture shows, in words: its own label."""
    return ElementTree.parse(picture).getroot().get("aria-label", "")


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
