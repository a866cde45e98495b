"""Prints what `gpu_check` found: as text, as Markdown for ``docs/``, as JSON."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import asdict

from benchmarks.gpu.check import Check
from benchmarks.gpu.job import Outcome
from benchmarks.gpu.machine import Machine
from benchmarks.gpu.rank import END
from benchmarks.gpu.verified import ROW

WIDTH = 118
LETTERS = "ABCDEFGH"
"""The columns: settings have long names."""


def cells(outcomes: Sequence[Outcome], setting: str, check: str) -> list[Outcome]:
    """What is known of a check on a setting, of each mode."""
    return [each for each in outcomes if each.setting == setting and each.check == check]


def cell(found: Sequence[Outcome]) -> str:
    """One word for a cell, with the modes where they differ."""
    if not found:
        return ""
    modes: dict[str, list[str]] = {}
    for outcome in found:
        modes.setdefault(outcome.outcome.replace("failed", "FAILED"), []).append(outcome.mode)
    if len(modes) == 1:
        return next(iter(modes))
    return ", ".join(f"{word} ({' '.join(dict.fromkeys(each))})" for word, each in sorted(modes.items()))


def rows(checks: Sequence[Check], outcomes: Sequence[Outcome]) -> list[tuple[str, str]]:
    """Section and name of each row: the checks that were chosen, then how the jobs ended."""
    known = [(check.section, check.name) for check in checks]
    names = {name for _, name in known}
    ends = sorted({each.check for each in outcomes} - names, key=lambda name: (name != ROW, name))
    return known + [("whole jobs", name) for name in ends if name == ROW or name.startswith(END)]


def text(checks: Sequence[Check], settings: Sequence[str], outcomes: Sequence[Outcome], machine: Machine) -> str:
    """The table, then the reasons, then the figures, then the versions."""
    lines = [f"{letter}: {setting}" for letter, setting in zip(LETTERS, settings, strict=False)]
    width = max([len(name) for _, name in rows(checks, outcomes)] + [20])
    shown = [[cell(cells(outcomes, each, name)) for _, name in rows(checks, outcomes)] for each in settings]
    column = [max([len(word) for word in words] + [8]) for words in shown]
    section = ""
    lines += ["", _line("", LETTERS[: len(settings)], width, column)]
    for kind, name in rows(checks, outcomes):
        if kind != section:
            lines += ["", kind]
            section = kind
        lines.append(_line(f"  {name}", [cell(cells(outcomes, each, name)) for each in settings], width, column))
    for title, said in (("failed", reasons(outcomes, "failed")), ("skipped", reasons(outcomes, "skipped"))):
        lines += ["", f"{title}:"] * bool(said)
        lines += [textwrap.fill(each, WIDTH, initial_indent="  ", subsequent_indent="      ") for each in said]
    lines += ["", "measured:"] * bool(figures(outcomes))
    lines += [f"  {setting}: {name}: {value}" for setting, name, value in figures(outcomes)]
    return "\n".join([*lines, "", versions(machine)])


def _line(name: str, values: Iterable[str], width: int, column: Sequence[int]) -> str:
    padded = [value.ljust(size) for value, size in zip(values, column, strict=True)]
    return f"{name:<{width + 2}}  {'  '.join(padded)}".rstrip()


def reasons(outcomes: Sequence[Outcome], word: str) -> list[str]:
    """Why cells have an outcome, each reason of a setting once, with what it concerns."""
    found: dict[tuple[str, str], dict[str, list[str]]] = {}
    for outcome in outcomes:
        if outcome.outcome == word:
            found.setdefault((outcome.setting, outcome.reason), {}).setdefault(outcome.check, []).append(outcome.mode)
    said = []
    for (setting, reason), concerned in found.items():
        names = [f"{name} ({' '.join(modes)})" if word == "failed" else name for name, modes in concerned.items()]
        few = "; ".join(names[:4]) + (f"; and {len(names) - 4} more" if len(names) > 4 else "")
        said.append(f"{setting}: {reason} [{few}]")
    return said


def figures(outcomes: Sequence[Outcome]) -> list[tuple[str, str, str]]:
    """What was measured: setting, what, value."""
    return [(each.setting, name, value) for each in outcomes for name, value in each.figures.items()]


def versions(machine: Machine) -> str:
    """What it ran on."""
    return ", ".join(f"{name} {value}" for name, value in machine.versions.items())


def markdown(checks: Sequence[Check], settings: Sequence[str], outcomes: Sequence[Outcome], machine: Machine) -> str:
    """The same as a page's tables."""
    lines = [
        versions(machine) + ".",
        "",
        *[f"* {letter}: {setting}" for letter, setting in zip(LETTERS, settings, strict=False)],
        "",
        _row(["check", *LETTERS[: len(settings)]]),
        _row(["---"] * (1 + len(settings))),
    ]
    for _, name in rows(checks, outcomes):
        lines.append(_row([name, *(cell(cells(outcomes, each, name)) for each in settings)]))
    measured = figures(outcomes)
    if measured:
        lines += ["", _row(["setting", "measured", "value"]), _row(["---"] * 3)]
        lines += [_row(each) for each in measured]
    for word in ("failed", "skipped"):
        lines += ["", f"{word.capitalize()}:", ""] * bool(reasons(outcomes, word))
        lines += [f"* {each}" for each in reasons(outcomes, word)]
    return "\n".join(lines) + "\n"


def _row(values: Iterable[str]) -> str:
    return "| " + " | ".join(value.replace("|", "\\|") for value in values) + " |"


def document(outcomes: Sequence[Outcome], machine: Machine, seconds: float) -> str:
    """The same for programs."""
    told = {"schema": "simcoll.gpu_check/1", "seconds": round(seconds, 1), "machine": asdict(machine)}
    return json.dumps(told | {"outcomes": [asdict(each) for each in outcomes]}, indent=1) + "\n"
