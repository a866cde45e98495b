"""SC906 by the events of ranks: which place, from which step, and what has to come together; damaged events."""

from __future__ import annotations

import pytest

from simcoll.blackbox.memory_box import MemoryBox
from simcoll.core.record import Group
from simcoll.core.steps import StepNumber
from simcoll.verifier.findings.finding import Finding
from simcoll.verifier.values.random_states import random_states

RANKS = 3
WORLD = Group("0", "default_pg", (0, 1, 2))


def eight(number: int) -> str:
    return f"{number:08x}"


def found(held: list[str], drawn: list[str], steps: int = 3, **damage: object) -> list[Finding]:
    """The findings on ranks that hold these digests, and generator states, at three places of each step.

    In a text ``r`` stands for a number of the rank, ``2`` for one of rank 2 alone, and ``s`` for one of the step.
    """

    def text(kinds: list[str], rank: int, step: int, by_place: int = 0) -> str:
        known = {"r": 10 + rank, "2": 20 + (rank == 2), "s": 30 + step, "q": 100 + 7 * step + rank}
        return "".join(
            "-" * 8 if kind == "-" else eight(by_place * place + known[kind]) for place, kind in enumerate(kinds)
        )

    traces = []
    for rank in range(RANKS):
        box = MemoryBox(rank, RANKS, "record")
        box.group(WORLD)
        mine = damage if rank == 0 else {}
        places = {"index": 0, "ranks": [0, 1, 2], "form": "f", "sources": [None] * len(held)}
        box.event("activations", **(places | {name: value for name, value in mine.items() if name in places}))
        for step in range(steps):
            digests, states = text(held, rank, step, 1000), text(drawn, rank, step)
            event = {"index": 0, "number": step, "digests": digests, "states": states}
            box.event("promised", **(event | {name: value for name, value in mine.items() if name in event}))
        traces.append(box.trace())
    return [finding for _, finding in random_states(traces, [WORLD])]


def test_what_was_equal_differs_after_different_draws() -> None:
    [finding] = found(["s", "q", "q"], ["r", "q", "q"])
    assert (finding.code, finding.ranks, finding.group) == ("SC906", (0, 1, 2), WORLD)
    assert finding.culprits == ()
    assert "from step 1 on" in finding.message
    assert finding.step == StepNumber(1, exact=True)


def test_one_rank_is_in_the_minority() -> None:
    [finding] = found(["s", "2", "2"], ["2", "r", "r"])
    assert finding.culprits == (2,)


def test_places_that_are_not_known_are_passed_over() -> None:
    assert [one.code for one in found(["s", "-", "q"], ["r", "r", "q"])] == ["SC906"]
    assert found(["-", "q", "q"], ["r", "q", "q"]) == []


@pytest.mark.parametrize(
    ("digests", "states"),
    [
        (["s", "s", "s"], ["r", "q", "r"]),
        (["q", "s", "q"], ["r", "q", "r"]),
        (["s", "q", "q"], ["s", "r", "r"]),
    ],
    ids=["equal all the time", "different from the first place on", "from equal generators"],
)
def test_anything_else_is_silent(digests: list[str], states: list[str]) -> None:
    assert found(digests, states) == []


def test_no_draw_in_between_and_a_single_step_are_silent() -> None:
    assert found(["s", "q"], ["r", "q"], steps=1) == []
    assert found(["s", "q"], ["r", "r"]) == []


@pytest.mark.parametrize(
    "damage",
    [{"ranks": "all"}, {"ranks": [0, "x"]}, {"digests": 3}, {"states": "ab"}, {"number": None}, {"index": "0"}],
)
def test_damaged_events_count_for_nothing(damage: dict[str, object]) -> None:
    assert found(["s", "q"], ["r", "q"], **damage) == []


def test_lines_that_cannot_be_read_leave_the_finding() -> None:
    assert [one.code for one in found(["s", "q"], ["r", "q"], sources={})] == ["SC906"]
