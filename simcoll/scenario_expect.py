"""Holds a report against what a scenario expects, and against the report of another backend on the same scenario."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import zip_longest

from simcoll.scenario import WORLD, Expectation, Expected, Scenario
from simcoll.scenario_stage import Result
from simcoll.verifier.finding import Finding, Report
from simcoll.verifier.ranges import ranks_text

_ROUNDED = 1e-2
"""Half-precision sums differ by their order."""


def unmet(scenario: Scenario, report: Report, seconds: float | None) -> list[str]:
    """What a report does not have as the scenario expects it, one line each; nothing where all is as expected."""
    expect = scenario.expect or Expectation()
    problems = []
    for number, (expected, found) in enumerate(zip_longest(expect.findings, report.findings), 1):
        problems += [f"finding {number}: {problem}" for problem in _differs(scenario, expected, found)]
    return problems + _time(expect, seconds)


def _differs(scenario: Scenario, expected: Expected | None, found: Finding | None) -> list[str]:
    if expected is None or found is None:
        there = f"found {_said(found)}" if found is not None else "there is none"
        return [f"expected {expected.code if expected is not None else 'no further one'}, {there}"]
    if expected.code != found.code:
        return [f"expected {expected.code}, found {_said(found)}"]
    stated: list[tuple[str, object, object]] = [
        ("culprits", expected.culprits, tuple(sorted(found.culprits))),
        ("ranks", expected.ranks, tuple(sorted(found.ranks))),
        ("sequence", expected.sequence, found.sequence),
        ("severity", expected.severity, found.severity.value),
    ]
    problems = [
        f"{found.code} has {name} {_shown(actual)}, expected {_shown(wanted)}"
        for name, wanted, actual in stated
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


def disagreements(first: Report, second: Report, names: tuple[str, str]) -> list[str]:
    """What two backends' reports on one scenario say otherwise: code, group, sequence, culprits; one line each."""
    one, other = (Counter(_key(finding) for finding in report.findings) for report in (first, second))
    return [
        f"only {name} finds {_worded(key)}"
        for name, more in ((names[0], one - other), (names[1], other - one))
        for key in sorted(more.elements())
    ]


def different_results(
    first: Mapping[int, Sequence[Result]], second: Mapping[int, Sequence[Result]], names: tuple[str, str]
) -> list[str]:
    """Calls that brought a rank something else on the two backends; ranks that one of them did not finish are left."""
    found = []
    for rank in sorted(set(first) & set(second)):
        for one, other in zip(first[rank], second[rank], strict=False):
            close = abs(one.total - other.total) <= _ROUNDED * max(abs(one.total), abs(other.total))
            if one.line != other.line or not (close or one.total == other.total):
                values = f"{one.total:g} on {names[0]}, {other.total:g} on {names[1]}"
                found.append(f"rank {rank}: the outputs of line {one.line} add up to {values}")
                break
    return found


def _key(finding: Finding) -> tuple[str, str, tuple[int, ...], int, tuple[int, ...]]:
    ranks = () if finding.group is None else tuple(finding.group.ranks)
    return finding.code, finding.severity.value, ranks, finding.sequence or 0, tuple(sorted(finding.culprits))


def _worded(key: tuple[str, str, tuple[int, ...], int, tuple[int, ...]]) -> str:
    code, severity, ranks, sequence, culprits = key
    where = f" in the group of {ranks_text(ranks)}" if ranks else ""
    place = f", collective {sequence}" if sequence else ""
    blamed = f"culprits {ranks_text(culprits)}" if culprits else "no culprit"
    return f"{code} ({severity}){where}{place}, {blamed}"


def _said(found: Finding) -> str:
    return f"{found.code} ({found.message:.120})"


def _shown(value: object) -> str:
    return ranks_text(value) if isinstance(value, tuple) else str(value)
