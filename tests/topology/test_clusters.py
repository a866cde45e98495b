"""`simcoll.cluster`: the conventions that every engine relies on, and the defaults of the contract."""

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simcoll.topology.clusters import cluster, shared
from simcoll.topology.graph import LINKS, Topology, TopologyError, check, hosts, ranks
from simcoll.topology.hardware import FABRICS, GPUS, gpu_of


def of_kind(graph, kind):
    return [node for node, attributes in graph.nodes.items() if attributes["kind"] == kind]


def test_the_package_exports_the_function():
    import simcoll.topology.clusters  # a module of the function's name would take its place

    assert simcoll.cluster(nodes=2).graph["name"] == "2 x 8 h100"


@pytest.mark.parametrize("family", GPUS)
def test_every_family_makes_a_cluster(family):
    graph = cluster(gpu=family.upper(), nodes=2)
    check(graph)
    facts = gpu_of(family)
    assert isinstance(graph, Topology)
    assert graph.graph["gpu"] == family
    assert len(ranks(graph)) == 2 * (4 if family in ("gb200", "gb300") else 8)
    assert {graph.nodes[gpu]["model"] for gpu in ranks(graph)} == {family}
    for switch in of_kind(graph, "nvswitch"):
        assert graph.nodes[switch].get("sharp", False) == facts.nvls
        assert {edge["bandwidth"] for edge in graph[switch].values()} == {facts.nvlink_bandwidth}


def test_a_default_host():
    graph = cluster(gpu="h100", nodes=2)
    assert ranks(graph)[11] == "host1/gpu3"
    assert graph.nodes["host1/gpu3"] == {"kind": "gpu", "rank": 11, "host": "host1", "model": "h100"}
    assert nx.shortest_path(graph, "host1/gpu3", "host1/nic3") == ["host1/gpu3", "host1/pcie3", "host1/nic3"]
    assert graph.edges["host1/gpu3", "host1/nvswitch"]["bandwidth"] == pytest.approx(18 * 20.6e9)
    assert graph.edges["host1/nic3", "network"]["bandwidth"] == 50e9
    assert list(hosts(graph)) == ["host0", "host1"]


@given(
    st.sampled_from(sorted(GPUS)),
    st.integers(1, 5),
    st.integers(1, 9),
    st.integers(1, 20),
    st.sampled_from(sorted(FABRICS)),
)
def test_every_cluster_keeps_the_conventions(gpu, nodes, gpus, nics, fabric):
    graph = cluster(gpu=gpu, nodes=nodes, gpus_per_node=gpus, nics_per_node=nics, fabric=fabric, nvlink_domain=1)
    check(graph)
    assert len(of_kind(graph, "gpu")) == nodes * gpus
    assert len(of_kind(graph, "nic")) == nodes * nics
    assert nx.is_strongly_connected(graph)
    for one, other, edge in graph.edges(data=True):
        assert edge["link"] in LINKS
        assert graph.edges[other, one] == edge


@given(st.integers(1, 16), st.integers(0, 40))
def test_gpus_and_nics_are_shared_out_in_order_and_evenly(gpus, nics):
    groups = shared(gpus, nics)
    assert [gpu for members, _ in groups for gpu in members] == list(range(gpus))
    assert [nic for _, members in groups for nic in members] == list(range(nics))
    for members in zip(*groups, strict=True):
        sizes = [len(group) for group in members]
        assert max(sizes) - min(sizes) <= 1


def test_nics_fewer_than_gpus_are_shared():
    graph = cluster(gpu="a100", nics_per_node=4, nic_gbps=100, fabric="efa")
    assert {nx.shortest_path_length(graph, f"host0/gpu{gpu}", f"host0/nic{gpu // 2}") for gpu in range(8)} == {2}
    assert graph.graph["fabric"] == "efa"


def test_a_rack_is_one_nvlink_domain():
    graph = cluster(gpu="gb200", nodes=32)
    assert of_kind(graph, "nvswitch") == ["domain0/nvswitch", "domain1/nvswitch"]
    assert [graph.in_degree(switch) for switch in of_kind(graph, "nvswitch")] == [72, 56]


def test_domains_smaller_than_a_host_leave_the_way_over_pcie():
    graph = cluster(gpu="a100", gpus_per_node=8, nvlink_domain=2)
    assert len(of_kind(graph, "nvswitch")) == 4
    assert len(of_kind(graph, "cpu")) == 2
    assert nx.has_path(graph, "host0/gpu0", "host0/gpu7")


def test_pcie_does_not_starve_a_nic_that_is_sold_to_be_filled():
    for gpu, gbps in (("h100", 400), ("a100", 200), ("b300", 800)):
        graph = cluster(gpu=gpu, nic_gbps=gbps)
        assert graph.edges["host0/gpu0", "host0/pcie0"]["bandwidth"] >= gbps / 8 * 1e9


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"gpu": "h10"}, "unknown GPU family 'h10', expected .*h100"),
        ({"fabric": "myrinet"}, "unknown fabric 'myrinet', expected one of ib"),
        ({"nodes": 0}, "nodes is 0"),
        ({"nodes": 1.5}, "nodes is 1.5"),
        ({"nodes": 10**9}, "at most"),
        ({"gpus_per_node": -1}, "gpus_per_node is -1"),
        ({"nics_per_node": 0, "nodes": 2}, "nics_per_node is 0"),
        ({"nic_gbps": float("nan")}, "nic_gbps is nan"),
        ({"nvlink_domain": 3}, "nvlink_domain is 3 with 8 GPUs per node"),
        ({"gpu": "l4", "nvlink_domain": 2}, "l4 has no NVLink"),
    ],
)
def test_what_describes_no_cluster_is_named(arguments, message):
    with pytest.raises(TopologyError, match=message):
        cluster(**arguments)


def test_one_host_needs_no_nic():
    check(cluster(nics_per_node=0))
