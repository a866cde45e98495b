"""Curves of time over size, and the lowest of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simcoll.estimator.curve import LARGEST, Curve, lowest
from simcoll.estimator.nccl_tables import TREE_CORRECTION

seconds = st.floats(0, 1e-2)
sizes = st.integers(0, 1 << 44)


@st.composite
def curves(draw):
    per_byte = draw(st.floats(1e-13, 1e-8))
    return Curve(
        "ring",
        "LL",
        draw(seconds),
        draw(seconds),
        per_byte,
        per_byte * draw(st.floats(0.1, 1)),
        "inter",
        None,
        1.0,
        fill=draw(seconds),
        reach=draw(st.floats(0.1, 2)),
        overlap=draw(st.floats(0, 0.95)),
        correction=draw(st.sampled_from(((), *TREE_CORRECTION))),
    )


@given(curves(), sizes)
def test_terms_add_up(curve, size):
    assert sum(value for _, value in curve.terms(size)) == pytest.approx(curve.seconds(size), rel=1e-9, abs=1e-18)


@given(st.lists(curves(), min_size=1, max_size=8), sizes, st.integers(1, 1 << 40))
def test_more_bytes_never_take_less_time(several, size, more):
    chosen = lowest(several)
    before, after = chosen.at(size).seconds(size), chosen.at(size + more).seconds(size + more)
    assert after >= before * (1 - 1e-12)


@given(st.lists(curves(), min_size=1, max_size=8))
def test_time_rises_where_the_winner_changes(several):
    chosen = lowest(several)
    for start, before, after in zip(chosen.starts[1:], chosen.curves, chosen.curves[1:], strict=False):
        assert after.seconds(start) <= before.seconds(start)
        assert before.seconds(start - 1) <= after.seconds(start - 1)


@given(st.lists(curves(), min_size=1, max_size=8), st.integers(0, 236))
def test_the_lowest_is_lowest_at_the_sizes_compared(several, quarter):
    size = int(2 ** (quarter / 4))
    least = min(curve.seconds(size) for curve in several)
    assert lowest(several).at(size).seconds(size) == pytest.approx(least, rel=1e-9)


def test_sizes_beyond_all_bounds_have_a_curve():
    curve = Curve("ring", None, 0.0, 1e-6, 1e-9, 1e-9, "intra", None, 1.0)
    assert lowest([curve]).at(LARGEST) is curve
