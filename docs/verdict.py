"""Writes docs/verdict.md anew from the list of explanations: ``python docs/verdict.py``."""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection
from pathlib import Path

from simcoll.verifier.explanations import EXPLANATIONS, SHOWN, Explanation

TARGET = Path(__file__).with_name("verdict.md")

_HEAD = """# How a verdict is made

Written by `python docs/verdict.py` from `verifier/explanations.py`; a test compares the two. It answers why a report
says what it says: find the finding's code in the table, then what its explanation reports, on what evidence, and what
would have silenced it. What the codes mean is in [the rules](rules/README.md).

`simcoll verify` reads the records, aligns the ranks' calls, and asks the explanations below, in this order. One cause
gives one finding: an explanation is not asked where one that silences it has found something, and what it finds may
take the place of what an earlier one has found. A job that stands while it runs is asked for disagreements in calls
that have not ended, for messages without another end, and then for {first} to {last}.
"""

_SHOWN = """## What is shown first

Causes before symptoms: a failure that came before the first disagreement, and then what was found by these, in this
order. The first three are put together in order of time.

{order}
"""


def page() -> str:
    """The whole page."""
    head = _HEAD.format(first=_link("stopped process"), last=_link("nobody missing"))
    table = ["| code | explanations that report it |", "|---|---|", *map(_row, sorted(_codes()))]
    order = "\n".join(f"1. {_link(name)}" for name in SHOWN)
    sections = map(_section, EXPLANATIONS)
    return "\n".join([head, *table, "", "## In order of belief", "", *sections, _SHOWN.format(order=order)])


def _codes() -> set[str]:
    return {code for one in EXPLANATIONS for code in one.codes}


def _row(code: str) -> str:
    names = [one.name for one in EXPLANATIONS if code in one.codes]
    return f"| [{code}](rules/{code}.md) | {', '.join(map(_link, names))} |"


def _section(one: Explanation) -> str:
    lines = [f"### {one.name}", "", _prose(one.text), "", f"* reports {', '.join(one.codes)}"]
    if one.yields_to:
        lines.append(f"* silenced by {_runs(one.yields_to)}")
    if one.replaces:
        what = _prose(one.in_place_of.__doc__ or "").rstrip(".")
        lines.append(f"* takes the place of {', '.join(map(_link, one.replaces))}: {what[0].lower()}{what[1:]}")
    return "\n".join([*lines, ""])


def _runs(names: Collection[str]) -> str:
    """The explanations of these names, those that follow each other in the list as ``first to last``."""
    runs: list[list[str]] = [[]]
    for one in EXPLANATIONS:
        if one.name in names:
            runs[-1].append(one.name)
        elif runs[-1]:
            runs.append([])
    shown = ([*map(_link, run)] if len(run) < 3 else [f"{_link(run[0])} to {_link(run[-1])}"] for run in runs)
    return ", ".join(text for run in shown for text in run)


def _prose(docstring: str) -> str:
    """A docstring as Markdown."""
    return re.sub("``(.+?)``", r"`\1`", inspect.cleandoc(docstring))


def _link(name: str) -> str:
    return f"[{name}](#{re.sub('[^a-z0-9_ -]', '', name.lower()).replace(' ', '-')})"


if __name__ == "__main__":
    TARGET.write_text(page(), encoding="utf-8")
