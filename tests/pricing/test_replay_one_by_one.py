"""Ranks that go on one by one, as down a pipeline, or in lockstep, come to the times that waves come to."""

from __future__ import annotations

import random
from dataclasses import fields

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
from tests.support.native import KINDS, parts
from tests.support.seeds import drawn
from tests.support.timed import Made, call, timed

RANKS = 6
WORLD = tuple(range(RANKS))
GROUPS = [Group(str(number), "", ranks) for number, ranks in enumerate([WORLD, (0, 1), (1, 2), (3, 4, 5), (2, 3)])]
ALIKE = [Group(str(number), "", WORLD) for number in range(3)]
CALLS = st.lists(
    st.tuples(st.integers(0, 4), st.integers(0, 1 << 20), st.floats(0, 0.01), st.booleans()), min_size=1, max_size=12
)


def job(groups: list[Group], calls: list[tuple[int, int, float, bool]], spread: int) -> list[MemoryTrace]:
    """The ranks of each group make its calls, each after ``spread`` times its place more compute than the first."""
    made: dict[int, list[Made]] = {rank: [] for rank in WORLD}
    for number, size, gap, asynchronous in calls:
        group = groups[number % len(groups)]
        for place, rank in enumerate(group.ranks):
            made[rank].append(Made(group.name, call(size=size), gap * (1 + spread * place), asynchronous=asynchronous))
    return timed(groups, made)


def any_job(draw: random.Random) -> list[MemoryTrace]:
    """Collectives of any groups, and messages; some ranks never come to one, or make their calls in another order."""
    ranks = draw.choice([2, 5, 20])
    members = [range(ranks), *(draw.sample(range(ranks), draw.randint(2, ranks)) for _ in range(draw.randrange(6)))]
    groups = [Group(str(number), "", tuple(sorted(one))) for number, one in enumerate(members)]
    made: dict[int, list[Made]] = {rank: [] for rank in range(ranks)}
    later = draw.choice([0.0, 0.5, 1.0])
    for _ in range(draw.randint(1, 30)):
        group, size, gap = draw.choice(groups), draw.randint(1, 1 << 22), draw.choice([0.0, 0.001, draw.random() / 99])
        asynchronous = draw.random() < later
        here, there = draw.sample(range(len(group.ranks)), 2)
        if draw.random() < 0.5:
            ends = {here: call("send", size, peer=there), there: call("recv", size, peer=here)}
        else:
            ends = {place: call(size=size) for place in range(len(group.ranks)) if place != here or draw.random() < 0.9}
        for place, one in ends.items():
            made[group.ranks[place]].append(Made(group.name, one, gap * draw.choice([1, 1.5]), asynchronous))
    for calls in made.values() if draw.random() < 0.3 else ():
        draw.shuffle(calls)
    return timed(groups, made)


def replayed(traces: list[MemoryTrace], few: int, many: int, kinds: int, kind: str = "python") -> Replayed:
    with pytest.MonkeyPatch.context() as patch, parts(kind):
        patch.setattr(replay, "_FEW", few)
        patch.setattr(replay, "_MANY", many)
        patch.setattr(lockstep, "FEW", kinds)
        return price(traces, simcoll.flat(len(traces), 50e9, 1e-6)).replayed


def same(one: npt.ArrayLike, other: npt.ArrayLike) -> bool:
    return np.asarray(one).tobytes() == np.asarray(other).tobytes()


def differing(one: Replayed, other: Replayed) -> list[str]:
    """The names of what is not equal to the last bit."""
    pairs = {field.name: (getattr(one, field.name), getattr(other, field.name)) for field in fields(Replayed)}
    return [
        name
        for name, (here, there) in pairs.items()
        if not (all(map(same, here, there)) if isinstance(here, tuple) else same(here, there))
    ]


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
        assert differing(waves, replayed(traces, few, many, kinds)) == []


@pytest.mark.parametrize("seed", range(drawn(120)))
def test_the_compiled_waves_come_to_the_same_times(seed: int) -> None:
    draw = random.Random(seed)
    traces, kinds = any_job(draw), draw.choice([0, 64])
    few, many = draw.choice([(0, 0), (1, 4), (16, 64)])
    assert differing(*(replayed(traces, few, many, kinds, kind) for kind in KINDS)) == []


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
