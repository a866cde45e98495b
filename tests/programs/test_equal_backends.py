"""Simulated ranks, ranks as threads and real Gloo ranks say the same of random programs: results and findings.

What real Gloo, and threads, leave to time is not compared, by these rules and no others:

* who besides the culprits a finding names: those who waited, or had come, when it was found out;
* what comes after a first finding of severity error: by then some ranks have been ended, and how far the others came
  is a matter of milliseconds;
* the culprits of a message that does not fit, where one of the two reports names none: they rest on the other messages
  of the same lines, and some of these may not have been sent yet;
* whether a rank that is missed had ended (SC702; where a message was not received, SC304, which names nobody), or was
  about to (SC201);
* how grave it is that memory was used in flight (SC502, SC503): whether its data had left by then;
* on threads, memory that is used in flight (SC502, SC503): a call that all have come to runs at once there, so that it
  is over when its memory is used again, and the program may have waited for something since.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from simcoll.simulation.explore import explore
from simcoll.verifier.findings.finding import Finding, Severity
from tests.support.forked import ForkServer
from tests.support.planted_bugs import BUGS, planted
from tests.support.playing import Played, Players, body_of, differing_results, on_simulated_ranks, real_players
from tests.support.random_programs import Program, generate
from tests.support.seeds import drawn

LAST_RESORTS = 100
"""So many programs are tried before one has a place for a bug."""

IN_FLIGHT = ("SC502", "SC503")

CHANCE = st.randoms(use_true_random=False)


def bounded(examples: int) -> settings:
    """The same examples every time, and no more than so many, for each starts processes; no search for smaller ones."""
    unhurried = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    phases = (Phase.explicit, Phase.generate)
    return settings(
        max_examples=examples, deadline=None, derandomize=True, phases=phases, suppress_health_check=unhurried
    )


@pytest.fixture(scope="module")
def players(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Players]:
    server = ForkServer()
    yield real_players(server, tmp_path_factory.mktemp("players"))
    server.close()


def key(finding: Finding) -> tuple[object, ...]:
    """What backends must say alike."""
    group = None if finding.group is None else finding.group.ranks
    severity = None if finding.code in IN_FLIGHT else finding.severity
    return finding.code, severity, group, finding.sequence, finding.culprits


def keys(played: Played, at_once: bool) -> list[tuple[object, ...]]:
    """The findings that are no matter of time; ``at_once`` is what runs a call where it is made."""
    found = [one for one in played.findings if not at_once or one.code not in IN_FLIGHT]
    if found and found[0].severity is Severity.ERROR and found[0].code not in IN_FLIGHT:
        found = found[:1]
    return sorted(map(key, found), key=repr)


def alike(mine: Played, theirs: Played, *, at_once: bool = False) -> bool:
    if [_or_missing(one) for one in keys(mine, at_once)] == [_or_missing(one) for one in keys(theirs, at_once)]:
        return True
    return len(mine.findings) == len(theirs.findings) == 1 and _alike_but_for_time(mine.findings[0], theirs.findings[0])


def _or_missing(key: tuple[object, ...]) -> tuple[object, ...]:
    return ("SC201", *key[1:]) if key[0] == "SC702" else key


def _alike_but_for_time(mine: Finding, theirs: Finding) -> bool:
    if mine.culprits and theirs.culprits:
        return False
    if {mine.code, theirs.code} == {"SC201", "SC304"}:
        return key(mine)[1:-1] == key(theirs)[1:-1]
    return mine.code in ("SC301", "SC302") and key(mine)[:-1] == key(theirs)[:-1]


def check_alike(program: Program, players: Players) -> None:
    simulated = on_simulated_ranks(program)
    for name, play in players.items():
        other = play(program)
        said = f"{program}\nsimulated: {_said(simulated)}\n{name}: {_said(other)}\n{other.output[-2000:]}"
        assert alike(simulated, other, at_once=name == "threaded"), said
        if not simulated.findings:
            assert simulated.failed == other.failed, said
            assert simulated.results.keys() == other.results.keys(), said
            assert differing_results(program, simulated, other) == [], said


def _said(played: Played) -> str:
    return "".join(f"\n  {key(finding)} {finding.message}" for finding in played.findings) or "nothing"


def buggy(chance: random.Random, bug: str) -> Program | None:
    for _ in range(LAST_RESORTS):
        if (program := planted(chance, generate(chance), bug)) is not None:
            return program
    return None


@pytest.mark.slow
@pytest.mark.gloo
@bounded(drawn(25))
@given(chance=CHANCE)
def test_correct_programs_give_equal_results_and_no_findings(players: Players, chance: random.Random) -> None:
    program = generate(chance)
    assert on_simulated_ranks(program).findings == ()
    check_alike(program, players)


@pytest.mark.slow
@pytest.mark.gloo
@pytest.mark.parametrize("bug", BUGS)
@bounded(2)
@given(seed=st.integers(0, 2**32))
def test_planted_bugs_give_equal_findings(players: Players, bug: str, seed: int) -> None:
    if (program := buggy(random.Random(seed), bug)) is not None:
        check_alike(program, players)


@pytest.mark.slow
@settings(max_examples=drawn(60), deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32))
def test_correct_programs_are_silent_under_any_schedule(seed: int) -> None:
    program = generate(random.Random(seed))
    for sends in ("synchronous", "either"):
        exploration = explore(body_of(program), len(program.ranks), 8, seed=seed, sends=sends)
        assert exploration.failing is None, f"{program}\n{exploration.schedule}"


@pytest.mark.slow
@settings(max_examples=60, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32), bug=st.sampled_from(sorted(BUGS)))
def test_a_run_is_the_same_again_and_its_schedule_replays_it(seed: int, bug: str) -> None:
    if (program := buggy(random.Random(seed), bug)) is None:
        return
    first, again = on_simulated_ranks(program, seed), on_simulated_ranks(program, seed)
    replayed = on_simulated_ranks(program, schedule=first.schedule)
    assert first.written == again.written == replayed.written, str(program)


@pytest.mark.slow
def test_every_bug_is_found_on_simulated_ranks() -> None:
    for bug in BUGS:
        programs = [program for seed in range(12) if (program := buggy(random.Random(seed), bug)) is not None]
        assert any(on_simulated_ranks(program).findings for program in programs), bug


def test_a_program_is_one_line_a_step(tmp_path: Path) -> None:
    program = generate(random.Random(3))
    for rank, steps in enumerate(program.ranks):
        lines = program.source(rank).splitlines()
        assert all(step.source in lines[step.line - 1] for step in steps)
