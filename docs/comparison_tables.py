"""Writes the measured tables of docs/comparisons.md anew: ``python docs/comparison_tables.py``.

They come from ``comparison.json`` and ``real_bugs.json`` in ``benchmarks/data``, which ``make compare`` writes, and
from ``overhead.json`` beside them, which ``make bench ARGS="--ranks 2 --json"`` prints; a test compares page and data.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from simcoll.core.units import show_size
from simcoll.verifier.findings.rules import RULES

TARGET = Path(__file__).with_name("comparisons.md")
DATA = Path(__file__).parents[1] / "benchmarks" / "data"

TOOLS = {
    "plain": "torch alone",
    "DETAIL": "DETAIL",
    "torchfrtrace": "torchfrtrace",
    "torchfrtrace, mended": "torchfrtrace, dumps mended",
    "simcoll verify, dumps": "`simcoll verify`, same dumps",
    "simcoll detail": "simcoll, `detail`",
    "simcoll check": "simcoll, `check`",
    "simcoll record": "simcoll, `record`",
}
REAL = {**TOOLS, "simcoll preflight": "`simcoll preflight`"}
MODES = ("record", "check", "detail")
CALLS = {"sync": "and wait", "async": "asynchronous, one", "async x16": "asynchronous, 16 at once"}
Rows = Sequence[dict[str, Any]]


def page() -> str:
    """The page with its tables made anew."""
    document = json.loads((DATA / "comparison.json").read_text(encoding="utf-8"))
    document["real"] = json.loads((DATA / "real_bugs.json").read_text(encoding="utf-8"))
    document["overhead"] = json.loads((DATA / "overhead.json").read_text(encoding="utf-8"))
    text = TARGET.read_text(encoding="utf-8")
    for name, table in TABLES.items():
        begin, end = f"<!-- measured: {name} -->", "<!-- end -->"
        pattern = re.compile(rf"{re.escape(begin)}\n.*?{re.escape(end)}", re.DOTALL)
        made = f"{begin}\n{table(document)}{end}"
        text = pattern.sub(made.replace("\\", r"\\"), text)
    return text


def faulty(document: dict[str, Any]) -> str:
    """What each tool reports on the programs with a planted bug."""
    codes = {one["name"]: one["code"] for one in document["programs"]}
    head = ("tool", "cause", "culprit alone", "among others", "others", "line", "exit code", "nothing", "crash", "hang")
    lines = []
    for tool, shown in TOOLS.items():
        rows = [one for one in document["runs"] if one["tool"] == tool and codes[one["program"]]]
        blamed = [one for one in rows if one["accused"]]
        lined = [one for one in rows if one["has_line"]]
        lines.append(
            (
                shown,
                _part(rows, "cause"),
                *(f"{sum(one['accused'] == how for one in blamed)}" for how in ("alone", "among", "others")),
                _part(lined, "line"),
                _part(rows, "told"),
                f"{sum(not (one['told'] or one['cause']) for one in rows)}",
                f"{sum(one['ended'] == 'crash' for one in rows)}",
                f"{sum(one['ended'] == 'hang' for one in rows)}",
            )
        )
    return _table(head, lines)


def correct(document: dict[str, Any]) -> str:
    """What each tool reports on correct programs."""
    codes = {one["name"]: one["code"] for one in document["programs"]}
    lines = []
    for tool, shown in TOOLS.items():
        rows = [one for one in document["runs"] if one["tool"] == tool and not codes[one["program"]]]
        alarms = [one for one in rows if one["alarm"]]
        crashed = [one for one in alarms if one["ended"] == "crash"]
        failed = [one for one in alarms if one["failed"]]
        names = ", ".join(f"`{one['program']}`" for one in alarms if one not in crashed and one not in failed)
        lines.append((shown, _count(alarms, rows), str(len(crashed)), str(len(failed)), names or "-"))
    return _table(("tool", "not silent", "job crashes", "tool fails", "said to be wrong"), lines)


def codes(document: dict[str, Any]) -> str:
    """Of how many programs with each code the cause is named; how the job ended where it is named of none."""
    known: dict[str, list[str]] = {}
    for one in document["programs"]:
        if one["code"]:
            known.setdefault(one["code"], []).append(one["name"])
    chosen = [tool for tool in TOOLS if tool != "torchfrtrace"]
    lines = []
    for code, names in sorted(known.items()):
        cells = []
        for tool in chosen:
            rows = [one for one in document["runs"] if one["tool"] == tool and one["program"] in names]
            cells.append(_cell(rows))
        lines.append((f"[{code}](rules/{code}.md)", *cells))
    return _table(("code", *(TOOLS[tool] for tool in chosen)), lines)


def _measured_with(document: dict[str, Any]) -> str:
    machine = document["machine"]
    return f"Measured on {document['date']}: torch {machine['torch']}, Python {machine['python']},"


def basis(document: dict[str, Any]) -> str:
    """The machine and the versions of the measurement."""
    bugs = sum(bool(one["code"]) for one in document["programs"])
    right = len(document["programs"]) - bugs
    lines = (
        _measured_with(document),
        f"{document['machine']['cores']} cores, Gloo, {bugs} faulty and {right} correct programs of 2 to 4 ranks.",
        f"Groups have a time-out of {document['group_timeout_s']} s;",
        f"a job is cut off after {document['cut_off_s']} s.",
    )
    return "\n".join(lines) + "\n"


def real_basis(document: dict[str, Any]) -> str:
    """The machine and the versions of the measurement of real bugs."""
    measured = document["real"]
    count = sum(bool(one["code"]) for one in measured["programs"])
    lines = (
        _measured_with(measured),
        f"{measured['machine']['cores']} cores, Gloo, {count} programs of 2 to 4 ranks and as many correct twins.",
        f"Groups have a time-out of {measured['group_timeout_s']} s; a job is cut off after {measured['cut_off_s']} s.",
    )
    return "\n".join(lines) + "\n"


def real(document: dict[str, Any]) -> str:
    """Recall, class, line and noise of each tool on the real bugs, and its alarms on their twins."""
    measured = document["real"]
    codes = {one["name"]: one["code"] for one in measured["programs"]}
    lines = []
    for tool, shown in REAL.items():
        rows = [one for one in measured["runs"] if one["tool"] == tool]
        bugs = [one for one in rows if codes[one["program"]]]
        twins = [one for one in rows if not codes[one["program"]]]
        blamed = [one for one in bugs if one["accused"]]
        lines.append(
            (
                shown,
                *(_part(bugs, key) for key in ("reported", "right_class", "line")),
                f"{sum(one['accused'] == 'alone' for one in blamed)}/{len(blamed)}",
                f"{sum(one['accused'] in ('among', 'others') for one in blamed)}",
                f"{sum(one['extra'] for one in bugs)}",
                _part(twins, "alarm"),
            )
        )
    head = (
        "tool",
        "reported",
        "class",
        "line",
        "culprit alone",
        "innocent ranks",
        "extra findings",
        "twins not silent",
    )
    return _table(head, lines)


def real_missed(document: dict[str, Any]) -> str:
    """The programs on which simcoll is silent, or wrong about the class or the line, by mode."""
    measured = document["real"]
    codes = {one["name"]: one["code"] for one in measured["programs"]}
    lines = []
    for name, code in codes.items():
        cells = []
        for tool in (one for one in REAL if one.startswith("simcoll ") and "dumps" not in one):
            [row] = [one for one in measured["runs"] if (one["tool"], one["program"]) == (tool, name)]
            cells.append(_wrong(row))
        if code and any(cell != "-" for cell in cells):
            rule = f"[{code}](rules/{code}.md)" if code in RULES else "no rule"
            lines.append((f"`{name}`", rule, *cells))
    return _table(("program", "bug", "`detail`", "`check`", "`record`", "`preflight`"), lines)


def _wrong(row: dict[str, Any]) -> str:
    if not row["reported"]:
        return "missed"
    said = [word for key, word in (("right_class", "class"), ("line", "line")) if not row[key]]
    if row["accused"] in ("among", "others"):
        said.append("culprit")
    return ", ".join(said) or "-"


def cost(document: dict[str, Any]) -> str:
    """What a call costs under each tool, and on what that was measured."""
    measured = document["overhead"]
    variants = {"plain": "torch alone", "DETAIL": "DETAIL", **{mode: f"`{mode}`" for mode in MODES}}
    lines = [
        (
            show_size(row["size"]),
            CALLS[row["pattern"]],
            *(f"{row['seconds'][variant] * 1e6:,.0f}" for variant in variants),
        )
        for row in measured["seconds"]
    ]
    on, ranks = measured["machine"], sorted({row["ranks"] for row in measured["seconds"]})
    basis = (
        f"Measured on {measured['date']}: torch {on['torch']}, Python {on['python']}, {on['cores']} cores, Gloo,\n"
        f"{', '.join(map(str, ranks))} ranks; medians of {measured['rounds']} rounds, microseconds a call.\n\n"
    )
    return basis + _table(("size", "`all_reduce`", *variants.values()), lines)


TABLES: dict[str, Callable[[dict[str, Any]], str]] = {
    "basis": basis,
    "faulty": faulty,
    "correct": correct,
    "codes": codes,
    "real basis": real_basis,
    "real": real,
    "real missed": real_missed,
    "cost": cost,
}


def _cell(rows: Rows) -> str:
    named = sum(one["cause"] for one in rows)
    if named == len(rows):
        return f"{named}/{len(rows)}"
    missed = sorted({one["ended"] for one in rows if not one["cause"]})
    return f"{named}/{len(rows)} {', '.join(missed)}"


def _part(rows: Rows, key: str) -> str:
    return f"{sum(one[key] for one in rows)}/{len(rows)}"


def _count(some: Rows, rows: Rows) -> str:
    return f"{len(some)}/{len(rows)}"


def _table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, ["---"] * len(head), *lines))


if __name__ == "__main__":
    TARGET.write_text(page(), encoding="utf-8")
