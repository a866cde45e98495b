"""What the closed form reads off a graph."""

import math
from collections import deque
from typing import Any

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simcoll.estimator.shape import _way, shape_of
from simcoll.topology.graph import TopologyError, connect, derived, flat
from tests.support.graphs import LINK, pcie_box, servers, two_leaves


def test_a_flat_graph_is_ranks_that_leave_over_their_own_link():
    shape = shape_of(flat(8, 50e9, 1e-6))
    assert (shape.ranks, shape.domains, shape.local, shape.inside) == (8, 8, 1, None)
    assert shape.network == shape.root_network == 50e9
    assert shape.outside_latency == pytest.approx(1e-6)
    assert math.isinf(shape.inside_bandwidth)


def test_servers_are_domains_with_nvlink_inside_and_all_their_nics_outside():
    shape = shape_of(servers(nodes=3))
    assert (shape.ranks, shape.domains, shape.local) == (24, 3, 8)
    assert shape.inside is not None
    assert (shape.inside.kind, shape.inside.bandwidth) == ("nvlink", LINK["h100"])
    assert (shape.network, shape.root_network) == (8 * 50e9, 50e9)
    assert shape.inside_latency == pytest.approx(0.6e-6)
    assert shape.outside_latency == pytest.approx(3e-6)
    assert (shape.family, shape.fabric, shape.sharp) == ("h100", "ib", True)


def test_nics_shared_by_gpus_are_counted_once():
    shape = shape_of(servers(nics=4, nic=25e9))
    assert (shape.network, shape.root_network) == (4 * 25e9, 25e9)


def test_an_nvlink_domain_may_span_servers():
    shape = shape_of(servers("gb200", nodes=4, gpus=4, joined=2))
    assert (shape.domains, shape.local, shape.network) == (2, 8, 8 * 50e9)


@pytest.mark.parametrize(
    ("group", "domains", "local", "network"),
    [
        (tuple(range(8)), 1, 8, math.inf),
        ((0, 8), 2, 1, 50e9),
        ((0, 1, 8, 9), 2, 2, 100e9),
        ((3,), 1, 1, math.inf),
    ],
)
def test_a_group_uses_its_own_links(group, domains, local, network):
    shape = shape_of(servers(), group)
    assert (shape.ranks, shape.domains, shape.local, shape.network) == (len(group), domains, local, network)


def test_a_slow_nic_or_nvlink_holds_all_back():
    graph = servers()
    graph.edges["host1/nic3", "network"]["bandwidth"] = 5e9
    graph.edges["host0/gpu2", "nvswitch0"]["bandwidth"] = 100e9
    shape = shape_of(graph)
    assert (shape.network, shape.outside.source) == (8 * 5e9, "host1/nic3")
    assert (shape.inside.bandwidth, shape.inside.source) == (100e9, "host0/gpu2")


def test_an_edit_is_seen():
    graph = servers()
    before = shape_of(graph)
    assert shape_of(graph) is before
    graph.edges["host1/nic3", "network"]["bandwidth"] = 5e9
    assert shape_of(graph).network < before.network


def test_without_nvlink_the_narrowest_link_between_sockets_counts():
    shape = shape_of(pcie_box())
    assert (shape.inside.kind, shape.inside.bandwidth, shape.sharp) == ("cpu", 22e9, False)
    assert shape_of(pcie_box(), (0, 1)).inside.bandwidth == 24e9


def test_a_mesh_of_nvlinks_needs_no_switch():
    graph: nx.DiGraph[Any] = nx.DiGraph()
    for rank in range(4):
        graph.add_node(rank, kind="gpu", host=0)
    for one in range(4):
        for other in range(one):
            connect(graph, one, other, 40e9, 1e-6)
    assert shape_of(graph).inside.bandwidth == 120e9
    assert shape_of(graph, (0, 1)).inside.bandwidth == 40e9


def test_an_oversubscribed_leaf_bounds_an_exchange_more_than_a_ring():
    shape = shape_of(two_leaves(uplink=50e9, hosts=4))
    assert (shape.network, shape.ring_network) == (50e9, 50e9)
    # Of eight ranks four send four pieces each over the uplink: 16, where a rank's own link carries 7.
    assert shape.exchange_network == pytest.approx(50e9 * 7 / 16)
    assert shape_of(two_leaves(uplink=10e9)).ring_network == 10e9
    assert shape_of(two_leaves(uplink=10e9), (0, 1)).ring_network == 50e9


def test_ranks_that_no_way_joins_are_named():
    graph: nx.DiGraph[Any] = nx.DiGraph()
    graph.add_node("a", kind="gpu", host=0)
    graph.add_node("b", kind="gpu", host=1)
    with pytest.raises(TopologyError, match="no link leads out of the server of 'a'; give it a NIC"):
        shape_of(graph)
    graph.nodes["b"]["host"] = 0
    with pytest.raises(TopologyError, match="no link joins them"):
        shape_of(graph)


@pytest.mark.parametrize("nodes", range(3, 9))
def test_in_an_exchange_a_smaller_domain_takes_no_longer_for_having_fewer_nics(nodes):
    whole, uneven = (shape_of(servers("gb200", nodes=count, gpus=4, joined=2)) for count in (8, nodes))
    pieces, of_whole = (shape.local / shape.crowd_network for shape in (uneven, whole))
    assert pieces == pytest.approx(of_whole)
    assert uneven.crowd_network >= uneven.network


def test_an_exchange_lasts_as_long_as_its_busiest_domain():
    shape = shape_of(servers("gb200", nodes=3, gpus=4, joined=2))
    assert shape.network == 4 * 50e9
    ranks, large, small = 12, 8 * 4 / (8 * 50e9), 4 * 8 / (4 * 50e9)
    assert shape.local * (ranks - shape.local) / shape.exchange_network == pytest.approx(max(large, small))


KINDS = ("pcie", "nic", "switch", "gpu")


@given(
    st.lists(st.sampled_from(KINDS), min_size=2, max_size=12),
    st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11)), max_size=40),
    st.sets(st.sampled_from(KINDS)),
)
def test_a_way_is_that_which_a_search_from_its_start_finds_first(kinds, links, passing):
    graph: nx.DiGraph[int] = nx.DiGraph()
    for node, kind in enumerate(kinds):
        graph.add_node(node, kind=kind)
    graph.add_edges_from((one, other) for one, other in links if one != other and max(one, other) < len(kinds))
    for end in range(1, len(kinds)):
        assert _way(graph, 0, end, sorted(passing)) == _from_its_start(graph, 0, end, passing)


def _from_its_start(graph, start, end, passing):
    came, queue = {start: [start]}, deque([start])
    while queue:
        one = queue.popleft()
        for other in graph.successors(one):
            if other not in came and (other == end or graph.nodes[other]["kind"] in passing):
                came[other] = [*came[one], other]
                queue.append(other)
    return came.get(end, [])


def test_a_way_between_two_hosts_looks_at_no_other_hosts():
    graph = servers(nodes=32)
    assert shape_of(graph, (7, 200)).domains == 2
    looked: list[dict[object, object]] = [
        derived(graph, direction, lambda graph: {}) for direction in ("successors", "predecessors")
    ]
    assert 0 < sum(map(len, looked)) < graph.number_of_nodes() / 4
