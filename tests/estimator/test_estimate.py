"""`simcoll.estimate`, as its users call it."""

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import simcoll
from simcoll.estimator.estimate import EstimateError
from simcoll.spec.collectives import COLLECTIVES
from simcoll.topology.graph import TopologyError, flat
from tests.support.graphs import servers

MIB, GIB = 1 << 20, 1 << 30

GRAPHS = [
    servers("h100", nodes=1),
    servers("h100", nodes=2),
    servers("a100", nodes=4, nics=4, nic=12.5e9, fabric="efa"),
    servers("h100", nodes=2, nics=4, nic=25e9, fabric="tcpx"),
    servers("gb200", nodes=4, gpus=4, joined=2),
    servers("b200", nodes=16, gpus=1),
    flat(8, 50e9, 1e-6),
]

MOVING = [op for op, spec in COLLECTIVES.items() if spec.measured is not None]


def test_one_estimate_says_all():
    found = simcoll.estimate("all_reduce", GIB, servers())
    assert (found.op, found.bytes, found.ranks, found.engine, found.calibrated) == (
        "all_reduce",
        GIB,
        16,
        "closed",
        True,
    )
    assert (found.algorithm, found.protocol) == ("nvls_tree", "Simple")
    assert found.algorithm_bandwidth == pytest.approx(GIB / found.seconds)
    assert found.bus_bandwidth == pytest.approx(2 * 15 / 16 * GIB / found.seconds)
    assert found.bottleneck.link == "nvlink"
    assert 0.5 < found.bottleneck.utilisation <= 1
    assert [name for name, _ in found.terms] == ["launch", "latency", "bandwidth intra", "protocol", "pipeline"]


@pytest.mark.parametrize("graph", GRAPHS, ids=lambda graph: graph.name)
@pytest.mark.parametrize("calibrated", [True, False])
@given(op=st.sampled_from(MOVING), size=st.integers(0, 1 << 36), more=st.integers(1, 1 << 20))
def test_time_rises_with_the_size_and_terms_add_up(graph, calibrated, op, size, more):
    one = simcoll.estimate(op, size, graph, calibrated=calibrated)
    other = simcoll.estimate(op, size + more, graph, calibrated=calibrated)
    assert other.seconds > one.seconds
    assert sum(seconds for _, seconds in one.terms) == pytest.approx(one.seconds, rel=1e-9)
    assert (one.bottleneck is None) == (size == 0)
    assert one.bottleneck is None or 0 <= one.bottleneck.utilisation <= 1


@pytest.mark.parametrize("op", COLLECTIVES)
@pytest.mark.parametrize("size", [1 << 10, MIB, GIB])
def test_more_servers_never_take_less_time(op, size):
    times = [simcoll.estimate(op, size, servers(nodes=nodes)).seconds for nodes in (1, 2, 4, 8)]
    assert times == sorted(times)


@pytest.mark.parametrize("op", COLLECTIVES)
def test_each_schedule_of_a_row_can_be_asked_for(op):
    for algorithm in COLLECTIVES[op].schedules:
        graph = servers(nodes=1) if algorithm == "nvls" else servers(gpus=1) if algorithm == "pat" else servers()
        found = simcoll.estimate(op, GIB, graph, algorithm=algorithm)
        bare = simcoll.estimate(op, GIB, graph, algorithm=algorithm, calibrated=False)
        assert (found.algorithm, bare.algorithm, bare.protocol) == (algorithm, algorithm, None)
        assert bare.seconds > 0
        assert bare.seconds < found.seconds or op == "barrier"


def test_the_least_time_of_all_protocols_is_taken():
    graph = servers()
    for size in (1 << 10, 1 << 18, 1 << 22, GIB):
        each = [
            simcoll.estimate("all_reduce", size, graph, protocol=protocol).seconds
            for protocol in ("LL", "LL128", "Simple")
        ]
        assert simcoll.estimate("all_reduce", size, graph).seconds == pytest.approx(min(each), rel=1e-3)


def test_a_bare_ring_is_the_textbook_formula():
    found = simcoll.estimate("all_reduce", GIB, flat(8, 50e9, 1e-6), algorithm="ring", calibrated=False)
    assert found.seconds == pytest.approx(2 * 7 * (1e-6 + GIB / 8 / 50e9))


def test_a_barrier_has_no_bytes():
    graph = servers()
    assert simcoll.estimate("barrier", 0, graph) == simcoll.estimate("barrier", GIB, graph)


@pytest.mark.parametrize("engine", ["closed", "flow"])
def test_a_barrier_takes_as_long_whatever_size_is_named(engine):
    none, large = (simcoll.estimate("barrier", size, servers(), engine=engine) for size in (0, GIB))
    assert none == large


def test_a_send_goes_from_the_first_rank_to_the_last():
    graph = servers()
    near = simcoll.estimate("send", GIB, graph, ranks=[0, 1])
    far = simcoll.estimate("send", GIB, graph, ranks=[0, 3, 8])
    assert (near.ranks, far.ranks, near.bottleneck.link, far.bottleneck.link) == (2, 2, "nvlink", "network")


def test_one_rank_only_launches():
    found = simcoll.estimate("all_reduce", GIB, servers(), ranks=[5])
    assert (found.ranks, found.bottleneck) == (1, None)
    assert found.seconds < 1e-5
    assert simcoll.estimate("all_reduce", GIB, servers(), ranks=[5], calibrated=False).bus_bandwidth == 0


def test_numpy_sizes_and_ranks_are_whole_numbers():
    graph = servers()
    found = simcoll.estimate("all_reduce", np.int64(MIB), graph, ranks=np.arange(8))
    assert found == simcoll.estimate("all_reduce", MIB, graph, ranks=range(8))
    assert type(found.bytes) is int


def test_a_plain_digraph_will_do():
    assert simcoll.estimate("all_reduce", MIB, nx.DiGraph(servers())) == simcoll.estimate("all_reduce", MIB, servers())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"op": "allreduce"}, "unknown op 'allreduce', expected all_reduce"),
        ({"op": "ALL-GATHER"}, "unknown op 'ALL-GATHER', expected all_gather"),
        ({"op": "reduce_scatter_tensor"}, "expected reduce_scatter"),
        ({"op": ["all_reduce"]}, "unknown op"),
        ({"size": -1}, "size is -1, expected bytes: a whole number from 0"),
        ({"size": True}, "size is True"),
        ({"size": 1e6}, "size is 1000000.0"),
        ({"size": 1 << 61}, "size is 2305843009213693952"),
        ({"size": "1GiB"}, "size is '1GiB'"),
        ({"algorithm": "pat"}, "all_reduce has no algorithm 'pat', expected one of ring, tree"),
        ({"algorithm": "rings"}, "all_reduce has no algorithm 'rings', expected ring"),
        ({"algorithm": ["ring"]}, "has no algorithm"),
        ({"algorithm": "nvls"}, "all_reduce cannot run as nvls on 16 ranks in 2 NVLink domains of h100"),
        ({"protocol": "LL64"}, "protocol is 'LL64', expected one of LL, LL128, Simple"),
        ({"protocol": "LL", "calibrated": False}, "a bare graph has none"),
        ({"protocol": "LL", "algorithm": "nvls_tree"}, "cannot run as nvls_tree in protocol LL"),
        ({"engine": "fast"}, "engine is 'fast', expected one of closed, flow"),
        ({"ranks": [0, 16]}, "ranks has 16 among them, expected ranks of the topology, from 0 to 15"),
        ({"ranks": []}, "ranks has none, expected"),
        ({"ranks": 4}, "ranks is 4, expected the ranks that take part"),
        ({"ranks": [0.0, 1.0]}, "ranks is (0.0, 1.0), expected whole numbers"),
        ({"ranks": [[0], [1]]}, "expected whole numbers"),
        ({"size": np.array([1, 2])}, "expected bytes"),
        ({"ranks": [1, 1]}, "ranks names a rank twice"),
        ({"protocol": ["LL"]}, "protocol is ['LL'], expected one of LL"),
        ({"calibrated": "no"}, "calibrated is 'no', expected True or False"),
        ({"calibrated": []}, "calibrated is [], expected True or False"),
    ],
)
def test_what_describes_no_collective_is_refused(arguments, message):
    given = {"op": "all_reduce", "size": MIB, "topology": servers(), **arguments}
    with pytest.raises(EstimateError) as raised:
        simcoll.estimate(**given)
    assert message in str(raised.value)


@pytest.mark.parametrize("engine", ["closed", "flow"])
def test_what_numpy_counts_with_does_not_leak_into_an_estimate(engine):
    graph = flat(4, 1e9, 1e-6)
    for edge in graph.edges:
        graph.edges[edge].update(bandwidth=np.float32(1e9), latency=np.float32(1e-6))
    found = simcoll.estimate("all_reduce", MIB, graph, engine=engine)
    assert {type(value) for value in (found.seconds, found.bus_bandwidth, found.bottleneck.bandwidth)} == {float}


@pytest.mark.parametrize("engine", ["closed", "flow"])
def test_links_without_end_cost_their_latency(engine):
    graph = flat(4, 1e9, 1e-6)
    for edge in graph.edges:
        graph.edges[edge]["bandwidth"] = float("inf")
    found = simcoll.estimate("all_reduce", MIB, graph, engine=engine, calibrated=False, algorithm="ring")
    assert found.seconds == pytest.approx(6e-6)


def test_the_names_of_a_fabric_are_read_in_any_case():
    one, other = servers(fabric="tcpx"), servers(fabric="TCPX")
    assert simcoll.estimate("all_reduce", MIB, one) == simcoll.estimate("all_reduce", MIB, other)


@pytest.mark.parametrize("engine", ["closed", "flow"])
@pytest.mark.parametrize("gone", [("gpu2", "switch"), ("switch", "gpu2"), ("gpu0", "switch"), ("switch", "gpu0")])
def test_ranks_that_are_not_joined_both_ways_are_named(engine, gone):
    graph = flat(4, 1e9, 1e-6)
    graph.remove_edge(*gone)
    for op in ("all_reduce", "all_to_all", "barrier"):
        with pytest.raises(TopologyError, match="gpu"):
            simcoll.estimate(op, MIB, graph, engine=engine)
    assert simcoll.estimate("all_reduce", MIB, graph, engine=engine, ranks=[1, 3]).seconds > 0


def test_no_byte_keeps_no_link_busy():
    for engine in ("closed", "flow"):
        assert simcoll.estimate("all_reduce", 0, servers(), engine=engine).bottleneck is None


def test_a_graph_that_is_no_topology_is_refused():
    with pytest.raises(TopologyError, match="the topology is a str, expected a networkx"):
        simcoll.estimate("all_reduce", MIB, "dgx-h100")
    with pytest.raises(TopologyError, match="has no node of kind gpu"):
        simcoll.estimate("all_reduce", MIB, nx.DiGraph())


@pytest.mark.parametrize("engine", ["closed", "flow"])
@pytest.mark.parametrize(("bandwidth", "latency"), [(5e-324, 0.0), (1e9, 1e308)])
def test_a_time_that_no_report_can_hold_is_refused(engine: str, bandwidth: float, latency: float) -> None:
    with pytest.raises(TopologyError, match="expected links with real figures"):
        simcoll.estimate("all_reduce", 1 << 20, flat(ranks=2, bandwidth=bandwidth, latency=latency), engine=engine)
