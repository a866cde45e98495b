"""The programs of ``programs``, unchanged, in a dry run: each gives the finding that its real ranks give."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("torch")

from simcoll.dryrun.process_pool import memory_kills
from simcoll.verifier.findings.finding import Severity
from tests.programs.test_programs import BUGS, CORRECT, Program
from tests.support.documents import check_report
from tests.support.preflights import DryRuns
from tests.support.seeds import nightly

pytestmark = [pytest.mark.slow]

BY_THE_CLOCK = "a rank is late, or a call is given up, by the clock: a dry run has none"
IN_FLIGHT = "whether a buffer is still in use is a matter of time, of which a dry run has none"
OF_GLOO = "Gloo refuses what other backends take"
BY_A_SIGNAL = "a rank that is killed may be one that had too little memory, where the system does not tell"

OF_THE_PLACE = "a program that states another world size than the dry run's has made no group there"

LEFT_OUT = {
    **dict.fromkeys(
        (
            "bugs/hang_before_init.py",
            "bugs/hang_before_init_stated.py",
            "bugs/hang_busy_rank.py",
            "bugs/hang_came_too_late.py",
            "bugs/hang_ddp_backward_skipped.py",
            "bugs/missing_early_stop.py",
            "bugs/missing_in_subgroup.py",
            "bugs/missing_two_ranks.py",
            "bugs/p2p_unmatched_receive.py",
            "correct/receives_given_up.py",
            "correct/timeout_handled.py",
        ),
        BY_THE_CLOCK,
    ),
    **dict.fromkeys(
        (
            "bugs/buffer_changed_in_flight.py",
            "bugs/buffer_of_results_written.py",
            "bugs/buffers_overlap_in_flight.py",
        ),
        IN_FLIGHT,
    ),
    **dict.fromkeys(
        (
            "bugs/invalid_bitwise_on_floats.py",
            "bugs/invalid_int16.py",
            "bugs/invalid_not_contiguous.py",
            "bugs/invalid_uneven_all_gather.py",
        ),
        OF_GLOO,
    ),
    "bugs/world_size_too_large.py": OF_THE_PLACE,
    **({"bugs/failed_signal.py": BY_A_SIGNAL} if memory_kills() is None else {}),
}
"""Programs that a dry run cannot judge, and why."""

WHOLE = {
    "bugs/op_barrier_against_all_reduce.py": ("SC202", Severity.ERROR),
    "bugs/group_used_after_its_end.py": ("SC601", Severity.WARNING),
    "bugs/op_in_finally_of_exception.py": ("SC202", Severity.ERROR),
    "bugs/op_swapped_pair.py": ("SC203", Severity.ERROR),
    "bugs/p2p_message_race.py": ("SC304", Severity.ERROR),
    "bugs/shape_broadcast_image.py": ("SC109", Severity.WARNING),
    "bugs/world_size_on_one_rank.py": ("SC701", Severity.ERROR),
}
"""What is said where the whole program is known, as after a run in ``record``; ``detail`` stops at the first call.

A rank that states another world size than the dry run's fails there. Messages come by the ranks of their senders, in
which order the race does harm. A group that a rank has destroyed goes on there, as it does on a backend that does not
notice.
"""


def chosen(programs: list[Program]) -> list[Program]:
    return [program for program in programs if program.name not in LEFT_OUT]


def planted() -> list[Any]:
    """The programs with a bug: every other one of each class on every change, all of them in ``make nightly``."""
    place: Counter[str] = Counter()
    found = []
    for program in chosen(BUGS):
        found.append(pytest.param(program, marks=nightly(place[program.code] % 2 == 1), id=program.name))
        place[program.code] += 1
    return found


ELSEWHERE = {"bugs/op_in_finally_of_exception.py"}
"""Where the finding of the whole program lies at the call left out, not at the one made in its place."""

TIMEOUT_SECONDS = 60


def arguments(program: Program) -> tuple[object, ...]:
    return "--world-size", program.ranks, "--timeout", TIMEOUT_SECONDS, "--jobs", 1, program.path


@pytest.fixture(scope="module")
def dry_runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DryRuns]:
    """Every selected program, in a dry run that goes on while the first are judged."""
    with DryRuns(tmp_path_factory.mktemp("dry")) as runs:
        for item in request.session.items:
            if "dry_runs" in getattr(item, "fixturenames", ()) and item.module is request.module:
                runs.begin(*arguments(item.callspec.params["program"]))
        yield runs


@pytest.mark.parametrize("program", planted())
def test_planted_bug_is_the_first_finding(program: Program, dry_runs: DryRuns) -> None:
    report = dry_runs.report(*arguments(program))
    code, severity = WHOLE.get(program.name, (program.code, program.severity))
    assert report["findings"], report["notes"]
    first = report["findings"][0]
    assert (first["code"], first["culprits"]) == (code, list(program.culprits)), first
    assert program.place is None or program.name in ELSEWHERE or program.place in places(first), first
    assert [one["code"] for one in report["findings"] if one["severity"] == severity.value] == [code]
    assert report["exit_code"] == (3 if severity is Severity.ERROR else 0)


@pytest.mark.parametrize("program", chosen(CORRECT), ids=lambda program: program.name)
def test_correct_program_is_silent(program: Program, dry_runs: DryRuns) -> None:
    report = dry_runs.report(*arguments(program))
    check_report({name: value for name, value in report.items() if name != "exit_code"})
    assert (report["findings"], report["exit_code"]) == ([], 0), report


def places(finding: dict[str, Any]) -> set[tuple[str, int]]:
    """The lines that the culprits' sides name; all sides' where none of these made a call."""
    culprits = set(finding["culprits"])
    sides = [side for side in finding["sides"] if not culprits or culprits & set(side["ranks"])]
    if all(side["call"] is None for side in sides):
        sides = finding["sides"]
    return {(source["file"], source["line"]) for side in sides for source in side["source"]}


def test_what_is_left_out_exists() -> None:
    assert LEFT_OUT.keys() | WHOLE.keys() <= {program.name for program in (*BUGS, *CORRECT)}
    assert len(chosen(BUGS)) >= 110
    assert len(chosen(CORRECT)) >= 47
