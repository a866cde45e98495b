"""The output of ``simcoll simulate``: the report, call costs, unmet expectations, differences between backends.

A report is compared with a scenario's expectation, and with the report of another backend on the same scenario.
"""

from __future__ import annotations

import cmath
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from simcoll.core.ranges import ranks_text
from simcoll.core.text import plain
from simcoll.errors import FINDINGS, OK
from simcoll.pricing.views.simulated_calls import priced_lines, priced_table
from simcoll.reports.json_report import json_report
from simcoll.reports.terminal import TerminalReport
from simcoll.simulation.backends import Run
from simcoll.simulation.scenario import WORLD, Expectation, Expected, Scenario
from simcoll.verifier.exit_code import exit_code
from simcoll.verifier.findings.finding import Finding, Report

_ROUNDED = 1e-2
"""The relative tolerance of sums: half-precision ones depend on their order."""

_RACES = frozenset({"SC502", "SC503"})


def unmet(scenario: Scenario, report: Report, seconds: float | None) -> list[str]:
    """The differences between a report and the scenario's expectation, one line each."""
    expect = scenario.expect or Expectation()
    problems = []
    for number, (expected, found) in enumerate(zip_longest(expect.findings, report.findings), 1):
        problems += [f"finding {number}: {problem}" for problem in _differs(scenario, expected, found)]
    return problems + _time(expect, seconds)


def _differs(scenario: Scenario, expected: Expected | None, found: Finding | None) -> list[str]:
    if expected is None or found is None:
        there = f"found {_described(found)}" if found is not None else "there is none"
        return [f"expected {expected.code if expected is not None else 'no further one'}, {there}"]
    if expected.code != found.code:
        return [f"expected {expected.code}, found {_described(found)}"]
    compared: list[tuple[str, object, object]] = [
        ("culprits", expected.culprits, tuple(sorted(found.culprits))),
        ("ranks", expected.ranks, tuple(sorted(found.ranks))),
        ("sequence", expected.sequence, found.sequence),
        ("severity", expected.severity, found.severity.value),
    ]
    problems = [
        f"{found.code} has {name} {_shown(actual)}, expected {_shown(wanted)}"
        for name, wanted, actual in compared
        if wanted is not None and wanted != actual
    ]
    if expected.group is not None and not _is_group(scenario, expected.group, found):
        is_of = "no group" if found.group is None else f"the group {found.group.description!r}"
        problems.append(f"{found.code} is of {is_of}, expected {expected.group or 'the world'!r}")
    return problems


def _is_group(scenario: Scenario, name: str, found: Finding) -> bool:
    if found.group is None:
        return False
    if name == WORLD:
        return len(found.group.ranks) == scenario.ranks and not scenario.group(found.group.description)
    return name in (found.group.description, found.group.name)


def _time(expect: Expectation, seconds: float | None) -> list[str]:
    if expect.seconds is None:
        return []
    if seconds is None:
        return [f"expected {expect.seconds:g} s of virtual time, but there is no topology"]
    if math.isclose(seconds, expect.seconds, rel_tol=expect.within):
        return []
    return [f"took {seconds:g} s of virtual time, expected {expect.seconds:g} s up to {expect.within:.2%}"]


def differences(one: Run, other: Run) -> list[str]:
    """The differences between two backends on one scenario: findings, and results of calls; one line each.

    Code, severity, group, sequence and culprits of findings are compared. Results are not compared where buffers are
    used too early, since they depend on timing.
    """
    found = _other_findings(one, other)
    codes = {finding.code for run in (one, other) for finding in run.report.findings}
    return found if codes & _RACES else found + _other_results(one, other)


def _other_findings(one: Run, other: Run) -> list[str]:
    mine, theirs = (Counter(_key(finding) for finding in run.report.findings) for run in (one, other))
    return [
        f"only {run.backend} finds {_worded(key)}"
        for run, more in ((one, mine - theirs), (other, theirs - mine))
        for key in sorted(more.elements())
    ]


def _other_results(one: Run, other: Run) -> list[str]:
    """The first call of each rank with another result; calls that one of the runs did not reach are left out."""
    found = []
    for rank in sorted(set(one.results) & set(other.results)):
        for mine, theirs in zip(one.results[rank], other.results[rank], strict=False):
            if mine.line != theirs.line or not _close(mine.total, theirs.total):
                values = f"{mine.total:g} on {one.backend}, {theirs.total:g} on {other.backend}"
                found.append(f"rank {rank}: the outputs of line {mine.line} add up to {values}")
                break
    return found


def _close(mine: complex, theirs: complex) -> bool:
    if cmath.isnan(mine) and cmath.isnan(theirs):
        return True
    return mine == theirs or abs(mine - theirs) <= _ROUNDED * max(abs(mine), abs(theirs))


def _key(finding: Finding) -> tuple[str, str, tuple[int, ...], int, tuple[int, ...]]:
    ranks = () if finding.group is None else tuple(finding.group.ranks)
    return finding.code, finding.severity.value, ranks, finding.sequence or 0, tuple(sorted(finding.culprits))


def _worded(key: tuple[str, str, tuple[int, ...], int, tuple[int, ...]]) -> str:
    code, severity, ranks, sequence, culprits = key
    where = f" in the group of {ranks_text(ranks)}" if ranks else ""
    place = f", collective {sequence}" if sequence else ""
    blamed = f"culprits {ranks_text(culprits)}" if culprits else "no culprit"
    return f"{code} ({severity}){where}{place}, {blamed}"


def _described(found: Finding) -> str:
    return f"{found.code} ({found.message:.120})"


def _shown(value: object) -> str:
    return ranks_text(value) if isinstance(value, tuple) else str(value)


if TYPE_CHECKING:
    from simcoll.topology.graph import Topology

SCHEMA = "simcoll.simulation/1"


@dataclass(frozen=True, slots=True)
class Simulation:
    """The run that is shown, and the simulated one, which is the same unless another backend was asked for.

    ``unmet`` are the expectations that are not met, ``differences`` those between the two runs; None where there is
    nothing to compare with.
    """

    title: str
    shown: Run
    simulated: Run
    unmet: Sequence[str] | None
    differences: Sequence[str] | None
    topology: Topology | None = None


def exit_code_of(simulation: Simulation, *, check: bool) -> int:
    """The report's exit code, or 3 where backends disagree; with ``check`` 0 exactly if all expectations are met."""
    if check:
        return FINDINGS if simulation.unmet or simulation.differences else OK
    return exit_code(simulation.shown.report) or (FINDINGS if simulation.differences else OK)


@dataclass(frozen=True, slots=True)
class SimulationPicture:
    """A simulation as a rich renderable."""

    simulation: Simulation

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        simulation = self.simulation
        if simulation.title:
            yield plain(simulation.title, "bold")
        yield TerminalReport(simulation.shown.report)
        run = simulation.simulated
        if run.seconds is not None and (lines := priced_lines(run.traces)):
            yield priced_table(lines, run.seconds)
        names = f"simulated and {simulation.shown.backend}"
        yield from _lines(simulation.differences, f"{names} agree", f"{names} differ")
        yield from _lines(simulation.unmet, "as the scenario expects", "not as the scenario expects")


def _lines(problems: Sequence[str] | None, good: str, bad: str) -> list[Text]:
    if problems is None:
        return []
    return [plain(f"{bad}: {problem}", "red") for problem in problems] or [plain(good, "green")]


def simulation_document(simulation: Simulation) -> dict[str, object]:
    """The JSON document of a simulation."""
    run = simulation.simulated
    lines = [] if run.seconds is None else [asdict(line) for line in priced_lines(run.traces)]
    document: dict[str, object] = {
        "schema": SCHEMA,
        "title": simulation.title,
        "backend": simulation.shown.backend,
        "report": json_report(simulation.shown.report),
        "seconds": run.seconds,
        "lines": lines,
        "schedule": run.schedule,
        "unmet": simulation.unmet,
        "differences": simulation.differences,
    }
    if run.tried:
        document["exploration"] = {"tried": run.tried, "failed": run.failed, "replay": run.replay}
    return document
