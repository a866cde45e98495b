"""Routes: as short as networkx finds them, spread as hop by hop over every single switch, whatever link is changed."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.flow import three_levels
from simcoll.estimator.flow.paths import Paths
from simcoll.estimator.flow.routes import router
from simcoll.topology.graph import Topology, connect


def carried(graph: Topology, sources: list[str], targets: list[str]) -> dict[tuple[str, str], float]:
    """What each link that stands for itself or for others carries, in bytes for one byte of each transfer."""
    way = router(graph)
    number = way.network.number
    routes = way.routes(np.array([number[each] for each in sources]), np.array([number[each] for each in targets]))
    load = np.bincount(routes.link, routes.share, len(way.fabric.member)) / way.fabric.width
    names = way.network.nodes
    return {
        (names[way.network.source[member]], names[way.network.target[member]]): load[link]
        for link, member in enumerate(way.fabric.member)
        if load[link] > 0
    }


def hop_by_hop(graph: Topology, sources: list[str], targets: list[str]) -> dict[tuple[str, str], float]:
    """The same for every single link, without blocks and without classes of switches."""
    names = list(graph)
    number = {name: place for place, name in enumerate(names)}
    edges = [(number[one], number[other]) for one, other in graph.edges]
    source, target = np.array(edges, np.int64).T
    toll = np.array([100.0 * (graph.nodes[name]["kind"] == "gpu") for name in names])
    paths = Paths(len(names), source, target, np.ones(len(edges)), np.arange(len(edges)), toll=toll)
    walk = paths.walk(np.array([number[each] for each in sources]), np.array([number[each] for each in targets]))
    load = np.bincount(walk.link, walk.share, len(edges))
    return {(names[source[link]], names[target[link]]): load[link] for link in np.flatnonzero(load)}


@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@given(st.data())
def test_alike_switches_taken_together_carry_what_each_would(data: st.DataObject) -> None:
    graph = three_levels(64, hosts_per_leaf=2, leaves_per_pod=2)
    inner = [(one, other) for one, other in graph.edges if not {"gpu", "nic"} & {one[:3], other[:3]}]
    fabric = [edge for edge in inner if "nvs" not in edge[0] + edge[1]]
    for one, other in data.draw(st.lists(st.sampled_from(fabric), max_size=3)):
        graph.edges[one, other]["bandwidth"] /= 2
    ranks = st.integers(0, 63)
    pairs = data.draw(
        st.lists(st.tuples(ranks, ranks).filter(lambda pair: pair[0] != pair[1]), min_size=1, max_size=20)
    )
    sources, targets = [f"gpu{one}" for one, _ in pairs], [f"gpu{other}" for _, other in pairs]
    every = hop_by_hop(graph, sources, targets)
    for link, load in carried(graph, sources, targets).items():
        assert load == pytest.approx(every[link])


@settings(deadline=None, max_examples=40)
@given(st.integers(4, 12), st.integers(0, 10**6))
def test_any_network_of_switches_is_crossed_in_the_fewest_hops(switches: int, seed: int) -> None:
    plain = nx.connected_watts_strogatz_graph(switches, 3, 0.5, seed=seed)
    graph = Topology()
    for switch in plain:
        graph.add_node(f"switch{switch}", kind="switch")
        graph.add_node(f"gpu{switch}", kind="gpu")
        connect(graph, f"gpu{switch}", f"switch{switch}", 1e9, 1e-6)
    for one, other in plain.edges:
        connect(graph, f"switch{one}", f"switch{other}", 1e9, 1e-6)
    pairs = [(f"gpu{one}", f"gpu{other}") for one in plain for other in plain if one != other]
    sources, targets = map(list, zip(*pairs, strict=True))
    way = router(graph)
    number = np.vectorize(way.network.number.__getitem__)
    routes = way.routes(number(sources), number(targets))
    hops = np.bincount(routes.transfer, routes.share)
    assert hops == pytest.approx([nx.shortest_path_length(graph, one, other) for one, other in pairs])
    every = hop_by_hop(graph, sources, targets)
    found = carried(graph, sources, targets)
    assert all(load == pytest.approx(every[link]) for link, load in found.items())


def test_several_nics_of_a_gpu_carry_alike() -> None:
    graph = Topology()
    graph.add_node("net", kind="switch")
    for host in range(2):
        graph.add_node(f"gpu{host}", kind="gpu", host=host)
        for nic in range(4):
            graph.add_node(f"nic{host}.{nic}", kind="nic", host=host)
            connect(graph, f"gpu{host}", f"nic{host}.{nic}", 64e9, 1e-6)
            connect(graph, f"nic{host}.{nic}", "net", 25e9, 1e-6)
    assert set(carried(graph, ["gpu0"], ["gpu1"]).values()) == {0.25}


def test_of_two_ways_alike_the_one_of_lower_latency() -> None:
    graph = Topology()
    for end in ("a", "b"):
        graph.add_node(f"gpu{end}", kind="gpu")
        graph.add_node(f"leaf{end}", kind="switch")
        connect(graph, f"gpu{end}", f"leaf{end}", 1e9, 1e-6)
    for spine, latency in (("near", 1e-6), ("far", 9e-6)):
        graph.add_node(spine, kind="switch")
        for end in ("a", "b"):
            connect(graph, f"leaf{end}", spine, 1e9, latency)
    assert ("leafa", "near") in carried(graph, ["gpua"], ["gpub"])
    assert ("leafa", "far") not in carried(graph, ["gpua"], ["gpub"])


def test_rails_that_are_not_joined_are_reached_over_nvlink() -> None:
    graph = Topology()
    for rail in range(2):
        graph.add_node(f"rail{rail}", kind="switch")
    for host in range(2):
        graph.add_node(f"nvs{host}", kind="nvswitch", host=host)
        for rail in range(2):
            gpu, nic = f"gpu{host}.{rail}", f"nic{host}.{rail}"
            graph.add_node(gpu, kind="gpu", host=host)
            graph.add_node(nic, kind="nic", host=host)
            connect(graph, gpu, f"nvs{host}", 450e9, 1e-6)
            connect(graph, gpu, nic, 64e9, 1e-6)
            connect(graph, nic, f"rail{rail}", 50e9, 1e-6)
    load = carried(graph, ["gpu0.0"], ["gpu1.1"])
    assert load["gpu0.0", "nvs0"] + load.get(("nvs1", "gpu1.1"), 0.0) == pytest.approx(1.0)
