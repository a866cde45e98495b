"""The distances of which a step's length is one are counted alike with and without sorting."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from simcoll.core.steps import _common


@given(st.lists(st.integers(1, 12) | st.integers(1, 10**9), min_size=1, max_size=40))
def test_the_two_most_common_distances_are_found(distances):
    often = {value: distances.count(value) for value in distances}
    assert _common(np.array(distances, np.int64), 2) == sorted(often, key=lambda value: (-often[value], value))[:2]
