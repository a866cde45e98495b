"""Steps: the period of a rank's calls, whatever comes before, after, and inside a step."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simcoll.core.steps import Steps, period_of


@pytest.mark.parametrize(
    ("tokens", "found"),
    [
        ([1, 2, 3] * 4, Steps(0, 3, 4)),
        ([7] * 20, Steps(0, 1, 20)),
        ([9, 8, *[1, 2] * 5, 6], Steps(2, 2, 5)),
        ([*([1] * 40), 2] * 3, Steps(0, 41, 3)),
        ([*([1] * 10), *([2] * 10), 3] * 4, Steps(0, 21, 4)),
        ([1, 2, 3, 4, 5, 6], None),
        ([1, 2, 1, 2], None),
        ([], None),
        ([5], None),
        ([*range(100), 1, 2, 1, 2, 1, 2], None),
    ],
)
def test_the_period_is_the_shortest_that_makes_up_most(tokens, found):
    assert period_of(np.array(tokens, np.int64)) == found


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=12),
    st.integers(3, 30),
    st.lists(st.integers(10, 20), max_size=6),
    st.lists(st.integers(21, 30), max_size=6),
)
def test_a_loop_between_other_calls_is_found(step, often, before, after):
    found = period_of(np.array([*before, *step * often, *after], np.int64))
    if found is None:
        assert len(step) * often < 0.6 * (len(before) + len(after) + len(step) * often)
        return
    # A step may be made of a shorter one itself.
    assert found.period <= len(step)
    assert found.period * found.count >= 0.4 * len(step) * often
