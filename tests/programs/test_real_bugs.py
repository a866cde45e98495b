"""Programs after public issue threads, each with its bug and, with the argument ``fixed``, without it.

The first line of a program states what is wrong, as in ``programs/bugs``, the second its thread: repository and number.
What simcoll says is not always that: ``says=SC101`` is the code of its first finding (while ranks run, the calls of one
place are compared, so that a call that is extra meets another one), ``says=nothing`` a bug that it misses, ``blames=0``
whom it holds responsible, ``shows=another`` that it shows another line than the marked one. Those are stated because
they are so, not because they should be.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from simcoll.core.ranges import parse_ranks
from simcoll.verifier.exit_code import exit_code
from simcoll.verifier.findings.finding import Finding, Severity
from tests.programs.test_programs import PROGRAMS, Program, Runs, check_silent, programs
from tests.support.forked import Result
from tests.support.seeds import nightly
from tests.support.stated import stated

pytestmark = [pytest.mark.slow, pytest.mark.gloo]

BUGS = programs("real_bugs")
MODES = ("detail", "check", "record")
LEFT = {"SC201", "SC702"}
"""A rank that has ended is missing: which of both is said depends on whether it could end yet."""

CASES = [
    pytest.param(replace(program, mode=mode), id=f"{program.path.stem}-{mode}", marks=nightly(mode != "detail"))
    for program, mode in product(BUGS, MODES)
]
TWINS = [
    pytest.param(replace(case.values[0], arguments=("fixed",)), id=case.id, marks=case.marks)  # type: ignore[call-overload]
    for case in CASES
]


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    started = Runs(tmp_path_factory.mktemp("real_bugs"))
    for item in request.session.items:
        if item.path == Path(__file__) and "runs" in getattr(item, "fixturenames", ()):
            started.start(item.callspec.params["program"])  # type: ignore[attr-defined]
    yield started
    started.close()


def lines(finding: Finding) -> set[tuple[str, int]]:
    """All lines that a finding shows."""
    return {(source.source.file, source.source.line) for side in finding.sides for source in side.sources}


def check_said(program: Program, result: Result) -> None:
    """What is said is what the program's first line says, with the marked line."""
    code = program.stated.value("says") or program.code
    findings = result.report.findings
    if code == "nothing":
        assert findings == (), findings
        return
    assert findings, f"nothing was found\n{result.output}"
    first, described = findings[0], f"{findings}\n{result.output}"
    assert first.code == code or {first.code, code} == LEFT, described
    blamed = program.stated.value("blames")
    assert first.culprits == (tuple(parse_ranks(blamed)) if blamed else program.culprits), described
    assert (program.place in lines(first)) is not bool(program.stated.value("shows")), described
    assert [one for one in findings[1:] if one.severity is Severity.ERROR] == [], described
    if program.mode == "detail":
        assert exit_code(result.report) == 3


@pytest.mark.parametrize("program", CASES)
def test_bug(program: Program, runs: Runs) -> None:
    check_said(program, runs.result(program))


@pytest.mark.parametrize("program", TWINS)
def test_twin_is_silent(program: Program, runs: Runs) -> None:
    check_silent(runs.result(program))


@pytest.mark.parametrize("path", sorted((PROGRAMS / "real_bugs").glob("*.py")), ids=lambda path: path.stem)
def test_the_thread_is_named(path: Path) -> None:
    first, second = path.read_text().splitlines()[:2]
    assert first.startswith("# expect: SC")
    assert re.fullmatch(r"# thread: [\w.-]+/[\w.-]+#\d+", second)
    if "says=nothing" in first:
        assert stated(path, "simcoll"), "a miss states its reason"


def test_there_are_enough_programs() -> None:
    assert len(BUGS) >= 40
