"""Ranks that go on one by one, as down a pipeline, come to the times that waves come to."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import simcoll
from simcoll.core.record import Group
from simcoll.pricing import replay
from simcoll.pricing.price import price
from tests.support.timed import Made, call, timed

RANKS = 6
FLAT = simcoll.flat(RANKS, 50e9, 1e-6)
GROUPS = [
    Group(str(number), "", ranks)
    for number, ranks in enumerate([(0, 1, 2, 3, 4, 5), (0, 1), (1, 2), (3, 4, 5), (2, 3)])
]
CALLS = st.lists(st.tuples(st.integers(0, len(GROUPS) - 1), st.integers(0, 1 << 20), st.floats(0, 0.01)), min_size=1)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(CALLS, st.integers(1, 4))
def test_times_are_those_of_waves(calls: list[tuple[int, int, float]], many: int) -> None:
    made: dict[int, list[Made]] = {rank: [] for rank in range(RANKS)}
    for group, size, gap in calls:
        for place, rank in enumerate(GROUPS[group].ranks):
            made[rank].append(Made(str(group), call(size=size), gap * (1 + place)))
    found = []
    for few in (0, many):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(replay, "_FEW", few)
            patch.setattr(replay, "_MANY", many)
            found.append(price(timed(GROUPS, made), FLAT).replayed)
    waves, single = found
    for name in ("begin", "end", "first", "last", "latecomer", "waited", "exposed", "rank_end", "arrived", "let_go"):
        np.testing.assert_allclose(getattr(waves, name), getattr(single, name), err_msg=name)
    assert waves.cut_short == single.cut_short == 0
