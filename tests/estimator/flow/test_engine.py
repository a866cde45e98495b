"""The flow engine against closed expressions on flat graphs, and against the bandwidth of hosts and fat trees."""

from __future__ import annotations

import itertools
import math

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.flow import three_levels
from simcoll.core.estimate import Overheads
from simcoll.estimator.flow.engine import price
from simcoll.estimator.flow.phases import fair_rates
from simcoll.estimator.flow.routes import Routes
from simcoll.spec.collectives import COLLECTIVES
from simcoll.topology.graph import Topology, TopologyError, connect, flat
from tests.estimator.flow.test_schedule import servers
from tests.support.concurrent_collectives import ConcurrentCollective, price_together

GIB, BANDWIDTH, LATENCY = 1 << 30, 50e9, 1e-6


def powers(n: int) -> int:
    return (n - 1).bit_length()


def alpha_beta(op: str, algorithm: str, n: int) -> tuple[float, float]:
    """How many latencies, and how many times the size, an algorithm takes on a flat graph of n ranks."""
    part, log = (n - 1) / n, powers(n)
    return {
        ("all_reduce", "ring"): (2 * (n - 1), 2 * part),
        ("all_reduce", "direct"): (2, 2 * part),
        ("all_gather", "ring"): (n - 1, part),
        ("all_gather", "bruck"): (log, part),
        ("all_gather", "pat"): (log, part),
        ("all_gather", "direct"): (1, part),
        ("reduce_scatter", "ring"): (n - 1, part),
        ("reduce_scatter", "pat"): (log, part),
        ("reduce_scatter", "direct"): (1, part),
        ("all_to_all", "pairwise"): (n - 1, part),
        ("all_to_all", "direct"): (1, part),
        ("all_to_all", "bruck"): (log, sum(sum(1 for d in range(n) if d >> k & 1) for k in range(log)) / n),
        ("gather", "direct"): (1, part),
        ("scatter", "direct"): (1, part),
        ("gather", "tree"): (log, part),
        ("scatter", "tree"): (log, part),
        ("broadcast", "direct"): (1, n - 1),
        ("reduce", "direct"): (1, n - 1),
        ("barrier", "ring"): (2 * (n - 1), 0),
        ("barrier", "direct"): (1, 0),
        ("monitored_barrier", "direct"): (2, 0),
        ("send", "direct"): (1, 1),
        ("recv", "direct"): (1, 1),
    }[op, algorithm]


CLOSED = [
    (op, name)
    for op, spec in COLLECTIVES.items()
    for name in spec.schedules
    if name not in ("hierarchical", "nvls", "nvls_tree", "halving_doubling")
    and (op, name) not in [("all_reduce", "tree"), ("barrier", "tree")]
    and not (op in ("broadcast", "reduce") and name in ("ring", "tree"))
]


@pytest.mark.parametrize(("op", "algorithm"), CLOSED)
def test_a_flat_graph_costs_what_the_closed_expression_says(op: str, algorithm: str) -> None:
    for n, size in itertools.product([2, 3, 8, 13, 33, 70], [0, 1 << 10, GIB]):
        latencies, volume = alpha_beta(op, algorithm, n)
        if n == 2 and op == "gather":
            latencies, volume = 1, 0.5
        expected = latencies * LATENCY + volume * size / BANDWIDTH
        estimate = price(op, size, flat(n, BANDWIDTH, LATENCY), algorithm=algorithm)
        assert estimate.seconds == pytest.approx(expected, rel=1e-6), (n, size)
        assert sum(seconds for _, seconds in estimate.terms) == pytest.approx(estimate.seconds), (n, size)


@pytest.mark.parametrize("bits", [1, 2, 5])
def test_halving_and_doubling_on_powers_of_two(bits: int) -> None:
    n = 1 << bits
    graph, part = flat(n, BANDWIDTH, LATENCY), (n - 1) / n * GIB / BANDWIDTH
    assert price("all_reduce", GIB, graph, algorithm="halving_doubling").seconds == pytest.approx(
        2 * bits * LATENCY + 2 * part
    )
    assert price("reduce_scatter", GIB, graph, algorithm="halving_doubling").seconds == pytest.approx(
        bits * LATENCY + part
    )


@pytest.mark.parametrize("n", [2, 4, 9, 32])
@pytest.mark.parametrize("op", ["broadcast", "reduce"])
def test_a_chain_is_cut_into_the_best_number_of_chunks(op: str, n: int) -> None:
    """(n - 2 + c) rounds of latency + size / c, for the best c."""
    sending = GIB / BANDWIDTH
    best = min((n - 2 + c) * (LATENCY + sending / c) for c in range(1, 3000))
    assert price(op, GIB, flat(n, BANDWIDTH, LATENCY), algorithm="ring").seconds == pytest.approx(best, rel=1e-3)


@pytest.mark.parametrize("n", [4, 8, 32])
def test_a_double_tree_sends_twice_the_data_and_waits_for_its_height(n: int) -> None:
    graph = flat(n, BANDWIDTH, LATENCY)
    large, small = (price("all_reduce", size, graph, algorithm="tree").seconds for size in (1 << 36, 1))
    assert large == pytest.approx(2 * (1 << 36) / BANDWIDTH, rel=0.02)
    assert small == pytest.approx(2 * powers(n) * LATENCY, rel=0.01)


@pytest.mark.parametrize(
    ("n", "size", "microseconds"),
    [(8, GIB, 37_595), (64, GIB, 42_405), (64, 100 << 20, 4_255), (1024, GIB, 44_954)],
)
def test_what_loggopsim_says_of_a_ring(n: int, size: int, microseconds: float) -> None:
    """LogGOPSim's figures for a ring all-reduce at 50 GB/s and 1 µs."""
    estimate = price("all_reduce", size, flat(n, BANDWIDTH, LATENCY), algorithm="ring")
    assert estimate.seconds * 1e6 == pytest.approx(microseconds, rel=1e-4)


def test_without_an_algorithm_it_is_the_cheapest_that_applies() -> None:
    graph = servers((4, 4))
    for op in ("all_reduce", "all_gather", "all_to_all", "broadcast"):
        prices = {}
        for name in COLLECTIVES[op].schedules:
            try:
                prices[name] = price(op, GIB, graph, algorithm=name).seconds
            except TopologyError:
                assert name == "nvls"
        chosen = price(op, GIB, graph)
        assert chosen.seconds == min(prices.values()) == prices[chosen.algorithm]


def test_a_ring_over_all_nics_has_the_bandwidth_of_all_nics() -> None:
    """Four NICs of 50 GB/s per host: the bus bandwidth comes near 200 GB/s."""
    estimate = price("all_reduce", 64 * GIB, servers((4,) * 4), algorithm="ring")
    assert estimate.bus_bandwidth == pytest.approx(200e9, rel=0.01)
    assert estimate.bottleneck is not None
    assert estimate.bottleneck.link == "network"
    assert estimate.bottleneck.bandwidth == 50e9
    assert estimate.bottleneck.utilisation == pytest.approx(1, abs=0.01)


def test_a_switch_that_reduces_takes_the_data_once_up_and_once_down() -> None:
    estimate = price("all_reduce", 64 * GIB, servers((8,)), algorithm="nvls")
    assert estimate.seconds == pytest.approx(1e-6 + 64 * GIB / 450e9)
    with pytest.raises(TopologyError, match="sharp=True"):
        price("all_reduce", GIB, flat(8, BANDWIDTH, LATENCY), algorithm="nvls")


def test_parts_of_a_group_and_single_ranks() -> None:
    graph = flat(16, BANDWIDTH, LATENCY)
    assert (
        price("all_reduce", GIB, graph, [3, 9, 1], "ring").seconds
        == price("all_reduce", GIB, flat(3, 50e9, 1e-6), algorithm="ring").seconds
    )
    alone = price("all_reduce", GIB, graph, [7])
    assert (alone.seconds, alone.ranks, alone.bottleneck, alone.bus_bandwidth) == (0.0, 1, None, 0.0)


@pytest.mark.parametrize("factor", [2, 10])
def test_a_slow_link_holds_the_ring_back_and_is_named(factor: int) -> None:
    graph = flat(8, BANDWIDTH, LATENCY)
    before = price("all_reduce", GIB, graph, algorithm="ring").seconds
    graph.edges["gpu5", "switch"]["bandwidth"] /= factor
    slow = price("all_reduce", GIB, graph, algorithm="ring")
    assert slow.seconds == pytest.approx(factor * before, rel=0.01)
    assert slow.bottleneck is not None
    assert (slow.bottleneck.source, slow.bottleneck.target) == ("gpu5", "switch")


def test_ranks_that_come_late() -> None:
    graph = flat(8, BANDWIDTH, LATENCY)
    on_time = price("all_reduce", GIB, graph, algorithm="ring")
    assert price("all_reduce", GIB, graph, algorithm="ring", delays=[0] * 8) == on_time
    late = price("all_reduce", GIB, graph, algorithm="ring", delays=[0, 0, 3e-3, 0, 0, 0, 0, 0])
    assert late.seconds == pytest.approx(on_time.seconds + 3e-3)
    assert dict(late.terms)["waiting"] == pytest.approx(3e-3)
    # The last rank of a binomial scatter has nothing to do before the last step but one.
    first = price("scatter", GIB, graph, algorithm="tree")
    assert price("scatter", GIB, graph, algorithm="tree", delays=[0] * 7 + [1e-3]) == first
    with pytest.raises(TopologyError, match=r"expected seconds of at least 0 for each of 8 ranks"):
        price("all_reduce", GIB, graph, delays=[-1.0] * 8)


def test_ranks_without_a_route_are_named() -> None:
    graph = flat(4, BANDWIDTH, LATENCY)
    graph.remove_edge("switch", "gpu2")
    with pytest.raises(TopologyError, match="no route from 'gpu1' to 'gpu2'"):
        price("all_reduce", GIB, graph, algorithm="ring")


def test_any_digraph_will_do_and_gpus_may_pass_on_where_there_is_no_other_way() -> None:
    line: nx.DiGraph = nx.DiGraph()
    for rank in range(3):
        line.add_node(rank, kind="gpu")
    connect(line, 0, 1, 10e9, 1e-6)
    connect(line, 1, 2, 10e9, 1e-6)
    estimate = price("send", 10**10, line, [0, 2])
    assert estimate.seconds == pytest.approx(1 + 2e-6)


CUBE = "01 02 03 03 04 04 12 12 13 15 15 23 23 26 37 45 46 47 47 56 56 57 67 67"


def test_rings_on_a_cube_mesh_use_every_nvlink() -> None:
    """DGX-1 with V100: six links of 25 GB/s a GPU, so six rings."""
    graph = Topology()
    for rank in range(8):
        graph.add_node(rank, kind="gpu", host=0)
    for one, other in sorted({(int(pair[0]), int(pair[1])) for pair in CUBE.split()}):
        connect(graph, one, other, 25e9 * CUBE.split().count(f"{one}{other}"), 1e-6, link="nvlink")
    estimate = price("all_reduce", 64 * GIB, graph, algorithm="ring")
    assert estimate.bus_bandwidth == pytest.approx(150e9, rel=0.01)


def test_nvlink_before_pcie_and_the_own_nic() -> None:
    graph = servers((2, 2))
    graph.add_node("plx", kind="pcie", host=0)
    for gpu in ("gpu0.0", "gpu0.1"):
        connect(graph, gpu, "plx", 1e9, 1e-9, link="pcie")
    assert price("send", GIB, graph, [0, 1]).seconds == pytest.approx(1e-6 + GIB / 450e9)
    assert price("send", GIB, graph, [0, 2]).seconds == pytest.approx(3e-6 + GIB / 50e9)


def test_wrong_requests_say_what_was_expected() -> None:
    graph = flat(4, BANDWIDTH, LATENCY)
    with pytest.raises(TopologyError, match="ranks are"):
        price("all_reduce", 1, graph, [0, 9])
    with pytest.raises(TopologyError, match="size is -1"):
        price("all_reduce", -1, graph)
    with pytest.raises(TopologyError, match="starts are"):
        price_together([ConcurrentCollective("all_reduce", 1, start=-1.0)], graph)


def test_overheads_are_added_where_links_are_crossed() -> None:
    graph = flat(8, BANDWIDTH, LATENCY)
    heavy = Overheads(launch=5e-6, step={"network": 2e-6}, efficiency={"network": 0.5})
    estimate = price("all_reduce", GIB, graph, algorithm="ring", overheads=heavy)
    assert estimate.seconds == pytest.approx(5e-6 + 14 * 3e-6 + 2 * 7 / 8 * GIB / 25e9)
    assert estimate.calibrated
    assert not price("all_reduce", GIB, graph, algorithm="ring").calibrated


@pytest.mark.slow
@given(
    st.sampled_from(sorted(COLLECTIVES)), st.integers(1, 1 << 40), st.integers(1, 1 << 40), st.sampled_from([2, 5, 8])
)
def test_more_bytes_never_cost_less(op: str, one: int, other: int, n: int) -> None:
    graph = flat(n, BANDWIDTH, LATENCY)
    less, more = (price(op, size, graph).seconds for size in sorted((one, other)))
    assert less <= more * (1 + 1e-9)


@pytest.mark.parametrize("op", ["all_reduce", "all_to_all", "broadcast"])
def test_one_collective_alone_costs_the_same_among_none(op: str) -> None:
    graph = servers((4, 4))
    for name in COLLECTIVES[op].schedules:
        if name != "nvls":
            (together,) = price_together([ConcurrentCollective(op, GIB, None, name, 0.25)], graph)
            assert together.seconds == pytest.approx(price(op, GIB, graph, None, name).seconds, rel=1e-6)


def test_collectives_that_overlap_share_and_others_do_not() -> None:
    graph = flat(8, BANDWIDTH, LATENCY)
    alone = price("all_reduce", GIB, graph, algorithm="ring")
    both = price_together([ConcurrentCollective("all_reduce", GIB, None, "ring")] * 2, graph)
    assert [each.seconds for each in both] == pytest.approx([2 * alone.seconds] * 2, rel=0.01)
    apart = price_together(
        [ConcurrentCollective("all_reduce", GIB, part, "ring") for part in ((0, 1, 2, 3), (4, 5, 6, 7))], graph
    )
    own = price("all_reduce", GIB, graph, [0, 1, 2, 3], "ring").seconds
    assert [each.seconds for each in apart] == pytest.approx([own, own])
    later = price_together(
        [
            ConcurrentCollective("all_reduce", GIB, None, "ring"),
            ConcurrentCollective("all_reduce", GIB, None, "ring", 1.0),
        ],
        graph,
    )
    assert [each.seconds for each in later] == pytest.approx([alone.seconds] * 2)


def test_a_short_collective_beside_a_long_one_gets_half_of_the_link() -> None:
    graph = flat(8, BANDWIDTH, LATENCY)
    long, short = price_together(
        [
            ConcurrentCollective("all_reduce", GIB, None, "ring"),
            ConcurrentCollective("all_reduce", GIB // 8, None, "ring", 0.005),
        ],
        graph,
    )
    sending = 2 * 7 / 8 * GIB / BANDWIDTH
    assert short.seconds == pytest.approx(sending / 4, rel=0.02)
    assert long.seconds == pytest.approx(sending * 9 / 8, rel=0.02)


def test_a_fat_tree_of_full_bandwidth_is_no_narrower_than_one_switch() -> None:
    graph = three_levels(256, hosts_per_leaf=4, leaves_per_pod=2)
    for op, name in (("all_reduce", "ring"), ("all_to_all", "pairwise")):
        estimate = price(op, 64 * GIB, graph, algorithm=name)
        assert estimate.bottleneck is not None
        assert estimate.bottleneck.utilisation > 0.9
        assert estimate.bus_bandwidth == pytest.approx(400e9 if op == "all_reduce" else 50e9, rel=0.15)


def test_a_slow_spine_link_takes_its_share_of_the_traffic() -> None:
    """Traffic is spread evenly over the spines, so that the slowest link on the way decides."""
    graph = three_levels(128, hosts_per_leaf=4, leaves_per_pod=2)
    before = price("all_to_all", 64 * GIB, graph, algorithm="direct")
    graph.edges["leaf0", "spine0.1"]["bandwidth"] /= 16
    slow = price("all_to_all", 64 * GIB, graph, algorithm="direct")
    assert slow.seconds > 1.3 * before.seconds
    assert slow.bottleneck is not None
    assert (slow.bottleneck.source, slow.bottleneck.target) == ("leaf0", "spine0.1")


@pytest.mark.slow
def test_series_of_shifts_cost_what_all_of_them_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a tree with half of the bandwidth above the leaves, where distances differ."""
    graph = three_levels(256, hosts_per_leaf=4, leaves_per_pod=2)
    for one, other, data in graph.edges(data=True):
        if str(one).startswith("leaf") and str(other).startswith("spine"):
            data["bandwidth"] /= 4
    for op, name in (("all_to_all", "pairwise"), ("all_to_all", "direct"), ("all_gather", "direct")):
        sampled = price(op, GIB, graph, algorithm=name).seconds
        monkeypatch.setattr("simcoll.estimator.flow.phases._WRITTEN_OUT", 1 << 20)
        every = price(op, GIB, graph, algorithm=name).seconds
        monkeypatch.undo()
        assert sampled == pytest.approx(every, rel=0.05), name


@pytest.mark.slow
def test_sixteen_thousand_ranks() -> None:
    graph = three_levels(16384)
    for name in ("ring", "tree", "hierarchical"):
        assert price("all_reduce", GIB, graph, algorithm=name).seconds < 0.2
    pairwise = price("all_to_all", GIB, graph, algorithm="pairwise")
    assert pairwise.seconds > 16383 / 16384 * GIB / 50e9


def test_fair_rates_on_a_known_case() -> None:
    """Three flows over two links of 10 and 4: the two on the narrow link get 2 each, the other what is left."""
    routes = Routes(np.array([0, 1, 1, 2]), np.array([0, 0, 1, 1]), np.ones(4))
    assert fair_rates(routes, 3, np.array([10.0, 4.0])).tolist() == [8.0, 2.0, 2.0]
    assert math.isinf(fair_rates(routes, 4, np.array([10.0, 4.0]))[3])
