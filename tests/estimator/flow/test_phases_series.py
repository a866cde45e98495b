"""Sums from samples: exact where costs are straight lines or a few pieces of them, and never a distance lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simcoll.estimator.flow.phases import sampled


@given(st.integers(2, 3000), st.integers(1, 9), st.integers(1, 500))
def test_every_distance_is_counted_once(count: int, period: int, bend: int) -> None:
    weights = sampled(count, period, lambda distance: (float(min(distance, bend)), 1.0))
    assert sum(weights.values()) == pytest.approx(count - 1)


@given(st.integers(2, 3000), st.integers(1, 9), st.floats(0, 5), st.floats(0, 5))
def test_straight_lines_are_exact(count: int, period: int, base: float, slope: float) -> None:
    def cost(distance: int) -> tuple[float, float]:
        return base + slope * distance + distance % period, 1.0

    total = sum(weight * cost(distance)[0] for distance, weight in sampled(count, period, cost).items())
    assert total == pytest.approx(sum(cost(distance)[0] for distance in range(1, count)))


def test_a_bend_is_found_and_few_are_taken() -> None:
    weights = sampled(16384, 1, lambda distance: (float(min(distance, 700, 16384 - distance)), 1.0))
    total = sum(weight * min(distance, 700, 16384 - distance) for distance, weight in weights.items())
    assert total == pytest.approx(sum(min(distance, 700, 16384 - distance) for distance in range(1, 16384)))
    assert len(weights) < 70
