"""Schedules as terms: against published figures, and against schedules played out step by step."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simcoll.estimator.cost_patterns import _PATTERNS, bare_costs, load_of
from simcoll.estimator.shape import shape_of
from simcoll.spec.collectives import COLLECTIVES
from simcoll.topology.graph import flat
from tests.support.graphs import servers

ALPHA, RATE, GIB = 1e-6, 50e9, 1 << 30

PAIRS = [(op, algorithm) for op, spec in COLLECTIVES.items() for algorithm in spec.schedules]


def seconds(op, algorithm, ranks, size, graph=None):
    load = load_of(op, algorithm, bare_costs(shape_of(graph or flat(ranks, RATE, ALPHA))))
    return load.latency + size * load.per_byte


def test_every_schedule_of_the_spec_has_terms_and_no_other():
    assert set(_PATTERNS) == set(PAIRS)


@pytest.mark.parametrize(
    ("ranks", "size", "microseconds"),
    [(8, GIB, 37_595), (64, GIB, 42_405), (64, 100 << 20, 4_255), (1024, GIB, 44_954)],
)
def test_ring_all_reduce_agrees_with_loggopsim(ranks, size, microseconds):
    assert seconds("all_reduce", "ring", ranks, size) == pytest.approx(microseconds * 1e-6, rel=0.005)


@given(st.integers(2, 300), st.integers(1, 1 << 34))
def test_on_a_flat_graph_a_ring_is_its_textbook_formula(ranks, size):
    expected = (ranks - 1) * (ALPHA + size / ranks / RATE)
    assert seconds("all_gather", "ring", ranks, size) == pytest.approx(expected)
    assert seconds("all_to_all", "pairwise", ranks, size) == pytest.approx(expected)
    assert seconds("all_reduce", "ring", ranks, size) == pytest.approx(2 * expected)


@given(st.integers(1, 10), st.integers(1, 1 << 34))
def test_halving_and_doubling_send_as_much_as_a_ring_in_fewer_steps(power, size):
    ranks = 2**power
    expected = 2 * power * ALPHA + 2 * (ranks - 1) / ranks * size / RATE
    assert seconds("all_reduce", "halving_doubling", ranks, size) == pytest.approx(expected)


@given(st.integers(2, 200))
def test_bruck_gathers_in_doubling_rounds(ranks):
    held, rounds, sent = 1, 0, 0
    while held < ranks:
        step = min(held, ranks - held)
        held, rounds, sent = held + step, rounds + 1, sent + step
    expected = rounds * ALPHA + sent / ranks * GIB / RATE
    assert seconds("all_gather", "bruck", ranks, GIB) == pytest.approx(expected)


@given(st.integers(2, 6), st.integers(2, 6), st.booleans())
def test_a_pairwise_exchange_is_its_steps_played_out(nodes, gpus, shared):
    sharing = gpus if shared else 1
    graph = servers(nodes=nodes, gpus=gpus, nics=1 if shared else gpus)
    shape, ranks = shape_of(graph), nodes * gpus
    piece, total = GIB / ranks, 0.0
    for distance in range(1, ranks):
        leaving = sum((rank + distance) % ranks // gpus != 0 for rank in range(gpus))
        inside = 0.0 if leaving == gpus else piece / shape.inside_bandwidth
        latency = shape.outside_latency if leaving else shape.inside_latency
        total += latency + max(inside, min(leaving, sharing) * piece / 50e9)
    assert seconds("all_to_all", "pairwise", ranks, GIB, graph) == pytest.approx(total)


@given(st.integers(2, 200))
def test_pat_moves_as_much_as_bruck(ranks):
    expected = seconds("all_gather", "bruck", ranks, GIB)
    assert seconds("all_gather", "pat", ranks, GIB) == pytest.approx(expected)


def test_a_ring_over_servers_is_paced_by_nics_or_by_nvlink_whichever_is_slower():
    slow, fast = servers(nic=10e9), servers(nic=100e9)
    share = 2 * 15 / 16 * GIB
    steps = 30 * shape_of(slow).outside_latency
    assert seconds("all_reduce", "ring", 16, GIB, slow) == pytest.approx(steps + share / 80e9)
    assert seconds("all_reduce", "ring", 16, GIB, fast) == pytest.approx(steps + share * 7 / 8 / 370.8e9)


@pytest.mark.parametrize(("op", "algorithm"), PAIRS)
@pytest.mark.parametrize("graph", [flat(7, RATE, ALPHA), servers(), servers(nodes=1), servers(nodes=3, gpus=1)])
def test_terms_are_finite_and_not_negative(op, algorithm, graph):
    load = load_of(op, algorithm, bare_costs(shape_of(graph)))
    assert all(math.isfinite(value) and value >= 0 for value in (load.latency, load.inside, load.outside))
    assert load.per_byte > 0 or algorithm == "nvls"
