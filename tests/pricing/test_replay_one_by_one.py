"""Ranks that go on one by one, as down a pipeline, or in lockstep, come to the times that waves come to."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import simcoll
from simcoll.core.record import Group
from simcoll.core.trace import MemoryTrace
from simcoll.pricing import lockstep, replay
from simcoll.pricing.job import recorded_job
from simcoll.pricing.lockstep import in_lockstep
from simcoll.pricing.price import price
from simcoll.pricing.replayed import Replayed
from tests.support.timed import Made, call, timed

RANKS = 6
FLAT = simcoll.flat(RANKS, 50e9, 1e-6)
WORLD = tuple(range(RANKS))
GROUPS = [Group(str(number), "", ranks) for number, ranks in enumerate([WORLD, (0, 1), (1, 2), (3, 4, 5), (2, 3)])]
ALIKE = [Group(str(number), "", WORLD) for number in range(3)]
CALLS = st.lists(
    st.tuples(st.integers(0, 4), st.integers(0, 1 << 20), st.floats(0, 0.01), st.booleans()), min_size=1, max_size=12
)
TIMES = ("begin", "end", "first", "last", "latecomer", "waited", "exposed", "rank_exposed", "rank_waited", "rank_end")


def job(groups: list[Group], calls: list[tuple[int, int, float, bool]], spread: int) -> list[MemoryTrace]:
    """The ranks of each group make its calls, each after ``spread`` times its place more compute than the first."""
    made: dict[int, list[Made]] = {rank: [] for rank in WORLD}
    for number, size, gap, asynchronous in calls:
        group = groups[number % len(groups)]
        for place, rank in enumerate(group.ranks):
            made[rank].append(Made(group.name, call(size=size), gap * (1 + spread * place), asynchronous=asynchronous))
    return timed(groups, made)


def replayed(traces: list[MemoryTrace], few: int, many: int, kinds: int) -> Replayed:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replay, "_FEW", few)
        patch.setattr(replay, "_MANY", many)
        patch.setattr(lockstep, "FEW", kinds)
        return price(traces, FLAT).replayed


def same(one: npt.ArrayLike, other: npt.ArrayLike) -> bool:
    return np.asarray(one).tobytes() == np.asarray(other).tobytes()


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(CALLS, st.integers(1, 4), st.booleans(), st.integers(0, 1))
def test_times_are_those_of_waves(
    calls: list[tuple[int, int, float, bool]], many: int, alike: bool, spread: int
) -> None:
    traces = job(ALIKE if alike else GROUPS, calls, spread)
    waves = replayed(traces, 0, 0, 0)
    assert waves.cut_short == 0
    for few, kinds in ((many, 0), (0, 64)):
        other = replayed(traces, few, many, kinds)
        assert [name for name in TIMES if not same(getattr(waves, name), getattr(other, name))] == []
        assert all(map(same, waves.arrived, other.arrived))


@pytest.mark.parametrize(("spread", "courses"), [(0, 1), (1, RANKS)])
def test_ranks_that_make_the_same_calls_are_in_lockstep(spread: int, courses: int) -> None:
    traces = job(ALIKE, [(0, 8, 0.01, True), (1, 8, 0.01, False)], spread)
    (together,) = in_lockstep(recorded_job(traces))
    assert together.columns == WORLD
    assert len(together.programs) == courses


def test_the_two_ends_of_a_message_are_not_in_lockstep() -> None:
    made = {0: [Made("0", call("send", peer=1))], 1: [Made("0", call("recv", peer=0))]}
    found = in_lockstep(recorded_job(timed([Group("0", "", (0, 1))], made)))
    assert [one.columns for one in found] == [(0,), (1,)]
