"""What was measured speaks for what was not: between sizes, beyond them, and for other numbers of ranks."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simcoll.estimator.measured import MeasuredCurve, Measurement, curves, curves_of, measurements, seconds
from simcoll.topology.graph import TopologyError, flat


def line(op, ranks, sizes, latency=10e-6, bandwidth=1e9):
    return [Measurement(op, ranks, size, latency + size / bandwidth) for size in sizes]


def test_what_was_measured_is_given_back():
    found = curves_of(line("all_reduce", 4, [1 << 10, 1 << 16, 1 << 22]))
    assert seconds(found, "all_reduce", 1 << 16, 4) == pytest.approx(10e-6 + (1 << 16) / 1e9)


@pytest.mark.parametrize("size", [3 << 10, 3 << 14, 5 << 19, 1 << 24, 1 << 28])
def test_sizes_that_were_not_measured(size):
    found = curves_of(line("all_reduce", 4, [4**power for power in range(3, 12)]))
    assert seconds(found, "all_reduce", size, 4) == pytest.approx(10e-6 + size / 1e9, rel=0.1)


def test_a_size_below_the_smallest_takes_as_long_as_it():
    found = curves_of(line("broadcast", 2, [1024, 4096]))
    assert seconds(found, "broadcast", 1, 2) == seconds(found, "broadcast", 1024, 2)


def test_a_world_in_between_lies_between():
    found = curves_of(line("all_reduce", 2, [1024], 10e-6) + line("all_reduce", 4, [1024], 20e-6))
    assert seconds(found, "all_reduce", 1024, 3) == pytest.approx(15e-6 + 1024 / 1e9)


def test_a_larger_world_takes_longer_and_its_traffic_follows_the_factor():
    found = curves_of(line("all_reduce", 4, [1, 1 << 30]))
    moved = (2 * 7 / 8) / (2 * 3 / 4)
    fixed = 10e-6 + 1e-9
    assert seconds(found, "all_reduce", 1 << 30, 8) == pytest.approx(2 * fixed + ((1 << 30) - 1) / 1e9 * moved)


@given(st.lists(st.tuples(st.integers(1, 1 << 30), st.floats(1e-7, 10)), min_size=1, max_size=12))
def test_more_bytes_never_take_less_time(rows):
    (curve,) = curves_of([Measurement("all_reduce", 2, *row) for row in rows])["all_reduce"].values()
    times = [curve.at(1 << power) for power in range(34)]
    assert all(later >= sooner * (1 - 1e-9) for sooner, later in pairwise(times))
    assert all(math.isfinite(time) and time > 0 for time in times)


def test_noise_that_falls_is_levelled():
    found = curves_of([Measurement("barrier", 2, 1, 4e-6), Measurement("barrier", 2, 8, 1e-6)])
    assert found["barrier"][2].seconds == pytest.approx((2e-6, 2e-6))


def test_what_was_not_measured_is_not_known():
    found = curves_of(line("all_reduce", 4, [1]))
    assert seconds(found, "broadcast", 1, 4) is None
    assert seconds(found, "all_reduce", 1, 1) is None


def test_a_topology_carries_its_measurements():
    topology = flat(2, 1e9, 1e-6)
    assert curves(topology) == {}
    topology.graph["measured"] = [{"op": "all_reduce", "ranks": 2, "bytes": 8, "seconds": 1e-6}]
    assert curves(topology) == {"all_reduce": {2: MeasuredCurve((8,), (pytest.approx(1e-6),))}}


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (3, "expected a list"),
        ([3], "measured[0] is 3"),
        ([{"op": "all_reduce", "ranks": 2, "bytes": 8}], "seconds None, expected a number"),
        ([{"op": "all_reduce", "ranks": 2, "bytes": 8.5, "seconds": 1}], "bytes 8.5, expected a whole number"),
        ([{"op": "allreduce", "ranks": 2, "bytes": 8, "seconds": 1}], "op 'allreduce', expected one of"),
        ([{"op": "all_reduce", "ranks": 2, "bytes": 8, "seconds": math.nan}], "seconds above 0"),
        ([{"op": "all_reduce", "ranks": True, "bytes": 8, "seconds": 1}], "ranks True"),
    ],
)
def test_rows_that_say_nothing_are_refused(rows, said):
    with pytest.raises(TopologyError) as refused:
        measurements(rows)
    assert said in str(refused.value)
