"""The two engines beside each other: where a schedule's steps do not pipeline they must say the same."""

import pytest

import simcoll
from simcoll.spec.collectives import COLLECTIVES
from simcoll.topology.clusters import cluster
from simcoll.topology.graph import TopologyError, flat

GRAPHS = [
    flat(8, 50e9, 1e-6),
    cluster(gpu="h100", nodes=1),
    cluster(gpu="h100", nodes=2),
    cluster(gpu="a100", nodes=4, nics_per_node=4, nic_gbps=200),
]

PIPELINED = {("broadcast", "ring"), ("reduce", "ring"), ("broadcast", "hierarchical"), ("reduce", "hierarchical")}

STEPPED = [
    (op, algorithm)
    for op, spec in COLLECTIVES.items()
    for algorithm in spec.schedules
    if spec.measured is not None
    and (op, algorithm) not in PIPELINED
    and (algorithm != "tree" or op in ("gather", "scatter"))
    and algorithm not in ("nvls", "nvls_tree")
]


@pytest.mark.parametrize(("op", "algorithm"), STEPPED)
@pytest.mark.parametrize("graph", GRAPHS, ids=lambda graph: graph.name)
@pytest.mark.parametrize("size", [1 << 16, 1 << 30])
def test_on_the_bare_graph_both_engines_agree(op, algorithm, graph, size):
    hosts = {host for _, host in graph.nodes(data="host") if host is not None}
    if algorithm == "hierarchical" and len(hosts) in (1, 8):
        pytest.skip("the flow engine's hierarchical schedules want several hosts with several ranks")
    closed = simcoll.estimate(op, size, graph, algorithm=algorithm, calibrated=False)
    flow = simcoll.estimate(op, size, graph, algorithm=algorithm, calibrated=False, engine="flow")
    assert closed.seconds == pytest.approx(flow.seconds, rel=0.005)
    assert (closed.algorithm, closed.ranks, flow.engine) == (flow.algorithm, flow.ranks, "flow")


@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
@pytest.mark.parametrize(
    "end", [("host0/pcie3", "host0/nic3"), ("host1/gpu6", "host1/pcie6"), ("host1/nic2", "network")]
)
def test_a_slow_link_on_the_way_out_holds_both_engines_up(op, end):
    graph = cluster(gpu="h100", nodes=2)
    algorithm = "direct" if op == "all_to_all" else "ring"
    whole = simcoll.estimate(op, 1 << 30, graph, algorithm=algorithm, calibrated=False)
    for edge in (end, end[::-1]):
        graph.edges[edge]["bandwidth"] /= 2
    closed = simcoll.estimate(op, 1 << 30, graph, algorithm=algorithm, calibrated=False)
    flow = simcoll.estimate(op, 1 << 30, graph, algorithm=algorithm, calibrated=False, engine="flow")
    assert closed.seconds == pytest.approx(flow.seconds, rel=0.03)
    assert closed.seconds > 1.8 * whole.seconds


@pytest.mark.parametrize("group", [[0, 8], [0, 1, 8], [8, 0, 1], [0, 8, 9, 10], [1, 0, 2, 8]])
@pytest.mark.parametrize("op", ["broadcast", "reduce", "gather", "scatter"])
def test_the_roots_own_server_counts_where_servers_hold_unlike_many(op, group):
    closed, flow = (
        simcoll.estimate(op, 1 << 28, GRAPHS[2], algorithm="direct", calibrated=False, ranks=group, engine=engine)
        for engine in ("closed", "flow")
    )
    assert closed.seconds == pytest.approx(flow.seconds, rel=0.005)


@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
@pytest.mark.parametrize("graph", GRAPHS, ids=lambda graph: graph.name)
def test_calibrated_both_engines_choose_alike_and_agree_at_large_sizes(op, graph):
    closed = simcoll.estimate(op, 1 << 30, graph)
    flow = simcoll.estimate(op, 1 << 30, graph, engine="flow")
    assert (closed.algorithm, closed.protocol) == (flow.algorithm, flow.protocol)
    assert closed.seconds == pytest.approx(flow.seconds, rel=0.15)


@pytest.mark.parametrize("servers", [4, 19])
def test_both_engines_agree_on_domains_that_are_not_alike(servers):
    graph = cluster(gpu="h100", nodes=servers, gpus_per_node=4, nvlink_domain=12)
    closed, flow = (
        simcoll.estimate("all_to_all", 1 << 30, graph, algorithm="direct", calibrated=False, engine=engine).seconds
        for engine in ("closed", "flow")
    )
    assert closed == pytest.approx(flow, rel=0.001)


def test_the_flow_engine_takes_the_next_best_where_domains_are_not_alike():
    graph = cluster(gpu="h100", nodes=4, gpus_per_node=4, nvlink_domain=12)
    assert simcoll.estimate("all_reduce", 1 << 30, graph).algorithm == "nvls_tree"
    found = simcoll.estimate("all_reduce", 1 << 30, graph, engine="flow")
    assert found.algorithm in ("ring", "tree")
    with pytest.raises(TopologyError, match="same number of ranks"):
        simcoll.estimate("all_reduce", 1 << 30, graph, engine="flow", algorithm="nvls_tree")
