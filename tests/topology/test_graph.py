"""What a topology is: ranks, hosts, checks, and what is remembered for as long as nothing changes."""

import copy
import math
import pickle

import networkx as nx
import numpy as np
import pytest

from simcoll.topology.graph import (
    MAX_GPUS,
    Topology,
    TopologyError,
    check,
    connect,
    derived,
    flat,
    hosts,
    link_kind,
    ranks,
)


def test_flat_is_a_star_with_half_the_latency_on_each_link():
    star = flat(ranks=4, bandwidth=50e9, latency=1e-6)
    check(star)
    assert ranks(star) == ("gpu0", "gpu1", "gpu2", "gpu3")
    assert [star.edges[edge]["latency"] for edge in star.edges] == [5e-7] * 8
    assert len(hosts(star)) == 4


@pytest.mark.parametrize(
    "arguments",
    [
        *((ranks, 1.0, 0.0) for ranks in (0, -1, 2.5, True, "2", None, MAX_GPUS + 1)),
        *((2, bandwidth, 0.0) for bandwidth in (0, -1, math.nan, math.inf, "fast", None)),
        *((2, 1.0, latency) for latency in (-1e-9, math.inf, math.nan, "soon")),
    ],
)
def test_flat_refuses_numbers_that_describe_no_cluster(arguments):
    with pytest.raises(TopologyError, match="expected"):
        flat(*arguments)


def test_numbers_may_be_numpys():
    check(flat(np.int64(3), np.float64(1e9), np.float32(0)))


def test_ranks_are_the_numbers_or_the_order():
    graph: nx.DiGraph[object] = nx.DiGraph()
    for name, rank in (("b", 1), ("a", 0)):
        graph.add_node(name, kind="gpu", rank=rank)
    assert ranks(graph) == ("a", "b")
    for name in ("a", "b"):
        del graph.nodes[name]["rank"]
    assert ranks(graph) == ("b", "a")


@pytest.mark.parametrize("numbers", [(0, None), (0, 0), (0, 2), (1, 2), (-1, 0), (0, "x"), (0, [1])])
def test_half_numbered_gpus_are_refused(numbers):
    graph: nx.DiGraph[object] = nx.DiGraph()
    for position, rank in enumerate(numbers):
        graph.add_node(position, kind="gpu", **({} if rank is None else {"rank": rank}))
    with pytest.raises(TopologyError, match="expected"):
        ranks(graph)


def broken(change):
    graph = flat(2, 1e9, 0)
    change(graph)
    return graph


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda graph: graph.add_node("x", kind="toaster"), "node 'x' has kind 'toaster'"),
        (lambda graph: graph.add_edge("gpu0", "gpu1", latency=0), "'gpu0' -> 'gpu1' has bandwidth None"),
        (lambda graph: graph.edges["gpu0", "switch"].update(bandwidth=0), "bandwidth 0"),
        (lambda graph: graph.edges["gpu0", "switch"].update(latency=math.inf), "latency inf"),
        (lambda graph: graph.edges["gpu0", "switch"].update(bandwidth=10**400), "bandwidth 1000"),
        (lambda graph: graph.edges["gpu0", "switch"].update(link="warp"), "has link 'warp', expected one of nvlink"),
        (lambda graph: graph.nodes["gpu0"].update(host=[1]), r"host \[1\], expected a value that hashes"),
        (lambda graph: graph.nodes["switch"].update(level="top"), "level 'top', expected a whole number"),
        (lambda graph: graph.graph.update(fabric=["ib"]), r"the graph has fabric \['ib'\], expected a text"),
        (lambda graph: graph.remove_nodes_from(["gpu0", "gpu1"]), "no node of kind gpu"),
    ],
)
def test_check_names_what_is_wrong(change, message):
    with pytest.raises(TopologyError, match=message):
        check(broken(change))


@pytest.mark.parametrize("given", ["dgx-h100", None, nx.Graph(), nx.MultiDiGraph()])
def test_what_is_no_directed_graph_is_refused(given):
    for use in (check, ranks):
        with pytest.raises(TopologyError, match="expected a networkx"):
            use(given)


@pytest.mark.parametrize(
    ("one", "other", "link"),
    [
        ("gpu", "gpu", "nvlink"),
        ("gpu", "nvswitch", "nvlink"),
        ("gpu", "pcie", "pcie"),
        ("nic", "cpu", "pcie"),
        ("cpu", "cpu", "cpu"),
        ("nic", "nic", "network"),
        ("gpu", "switch", "network"),
    ],
)
def test_a_link_is_what_its_ends_suggest_unless_it_says(one, other, link):
    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_node("one", kind=one)
    graph.add_node("other", kind=other)
    graph.add_edge("one", "other")
    assert link_kind(graph, "one", "other") == link
    graph.edges["one", "other"]["link"] = "c2c"
    assert link_kind(graph, "one", "other") == "c2c"


CHANGES = [
    lambda graph: graph.add_node("more", kind="nic"),
    lambda graph: graph.remove_node("gpu1"),
    lambda graph: connect(graph, "gpu0", "gpu1", 1e9, 0),
    lambda graph: graph.edges["gpu0", "switch"].update(bandwidth=1),
    lambda graph: graph.edges["gpu0", "switch"].__setitem__("bandwidth", 1),
    lambda graph: graph.nodes["gpu0"].pop("host"),
    lambda graph: graph.graph.update(name="other"),
    lambda graph: graph.clear(),
]


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_derived_is_kept_until_something_changes(change):
    built = []
    graph = flat(2, 1e9, 0)
    for _ in range(2):
        derived(graph, "count", lambda graph: built.append(len(graph)))
    assert len(built) == 1
    change(graph)
    derived(graph, "count", lambda graph: built.append(len(graph)))
    assert len(built) == 2


def test_a_plain_graph_is_worked_out_anew():
    plain: nx.DiGraph[object] = nx.DiGraph(flat(2, 1e9, 0))
    built: list[object] = []
    for _ in range(2):
        derived(plain, "count", built.append)
    assert len(built) == 2


def test_a_copy_is_a_topology_of_its_own():
    graph = flat(2, 1e9, 0)
    other = graph.copy()
    assert isinstance(other, Topology)
    other.remove_node("gpu1")
    assert (len(ranks(graph)), len(ranks(other))) == (2, 1)


@pytest.mark.parametrize("graph", [None, 5, "dgx-h100", {}, nx.Graph(), nx.MultiDiGraph()])
def test_what_is_no_digraph_is_refused(graph):
    for asked in (check, ranks):
        with pytest.raises(TopologyError, match=r"expected a networkx\.DiGraph"):
            asked(graph)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda graph: pickle.loads(pickle.dumps(graph))])
def test_a_copy_does_not_take_what_was_derived_along(duplicate):
    star = flat(2, 1e9, 1e-6)
    derived(star, "key", lambda graph: graph.number_of_nodes())
    assert duplicate(star)._derived == {}
