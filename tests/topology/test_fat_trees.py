"""Drawn-out networks: who is on which leaf, what the uplinks carry, and how much such a tree holds."""

import networkx as nx
import pytest

from simcoll.topology.fat_trees import fat_tree, rail_optimised
from simcoll.topology.graph import TopologyError, check, ranks


def leaf_of(graph, nic):
    return next(other for other in graph[nic] if graph.nodes[other]["kind"] == "switch")


def test_servers_share_a_leaf_until_it_is_full():
    graph = fat_tree(nodes=8, radix=64)
    check(graph)
    assert {leaf_of(graph, f"host3/nic{nic}") for nic in range(8)} == {"leaf0"}
    assert leaf_of(graph, "host4/nic0") == "leaf1"
    assert graph.edges["leaf0", "spine0"]["bandwidth"] == 32 * 50e9


def test_rails_join_equal_nics():
    graph = rail_optimised(nodes=40, radix=64)
    assert {leaf_of(graph, f"host{host}/nic3") for host in range(32)} == {"leaf3"}
    assert leaf_of(graph, "host32/nic3") == "leaf11"


def test_oversubscription_is_downlinks_to_uplinks():
    graph = fat_tree(nodes=6, radix=64, oversubscription=3)
    assert graph.edges["leaf0", "spine0"]["bandwidth"] == pytest.approx(48 * 50e9 / 3)


def test_three_levels_have_pods_and_a_core():
    graph = fat_tree(nodes=40, gpus_per_node=1, radix=8, levels=3)
    levels = {node: attributes.get("level") for node, attributes in graph.nodes.items()}
    assert {level for level in levels.values() if level} == {1, 2, 3}
    assert nx.shortest_path(graph, "leaf0", "leaf9") == ["leaf0", "spine0", "core0", "spine2", "leaf9"]
    assert graph.edges["spine0", "core0"]["bandwidth"] == 4 * graph.edges["leaf0", "spine0"]["bandwidth"]


def test_more_nics_than_ports_of_a_leaf_spill_over():
    graph = fat_tree(nodes=1, radix=8)
    assert [leaf_of(graph, f"host0/nic{nic}") for nic in (0, 3, 4)] == ["leaf0", "leaf0", "leaf1"]


@pytest.mark.slow
def test_sixteen_thousand_ranks():
    graph = fat_tree(nodes=2048, levels=3)
    assert len(ranks(graph)) == 16384


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"nodes": 300}, "2,400 NICs need 75 leaves, but 2 levels of 64-port switches have at most 64; .*levels=3"),
        ({"levels": 4}, "levels is 4"),
        ({"radix": 1}, "radix is 1"),
        ({"oversubscription": 0}, "oversubscription is 0"),
        ({"oversubscription": 0.001}, "at least one to servers and one to the spine"),
        ({"gpu": "nope"}, "unknown GPU family"),
    ],
)
def test_what_no_tree_holds_is_named(arguments, message):
    with pytest.raises(TopologyError, match=message):
        fat_tree(**arguments)
