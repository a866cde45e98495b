"""NCCL's choice: which algorithms and protocols there are, and what its formulas give."""

import pytest

from simcoll.estimator.calibration import calibration
from simcoll.estimator.nccl_tuner import chosen_from, curves_of
from simcoll.estimator.shape import shape_of
from simcoll.spec.collectives import COLLECTIVES
from tests.support.graphs import pcie_box, servers


def names(op, graph, group=None):
    curves = chosen_from(COLLECTIVES[op], shape_of(graph, group), calibration())
    return {(curve.algorithm, curve.protocol) for curve in curves}


def curve(op, algorithm, protocol, graph):
    found = curves_of(op, algorithm, shape_of(graph), calibration())
    return next(each for each in found if each.protocol == protocol)


def pairs(*algorithms):
    return {(name, protocol) for name in algorithms for protocol in ("LL", "LL128", "Simple")}


@pytest.mark.parametrize(
    ("op", "graph", "expected"),
    [
        ("all_reduce", servers("a100", nodes=1), pairs("ring", "tree")),
        ("all_reduce", servers("h100", nodes=1), pairs("ring", "tree") | {("nvls", "Simple")}),
        ("all_reduce", servers("h100"), pairs("ring", "tree") | {("nvls_tree", "Simple")}),
        ("all_reduce", servers("h100", fabric="tcpx"), {("ring", "Simple")}),
        ("all_reduce", servers("h100", fabric="efa"), pairs("ring", "tree") | {("nvls_tree", "Simple")}),
        ("all_reduce", servers("a100", fabric="efa"), {("ring", "Simple"), ("tree", "Simple")}),
        ("all_reduce", servers("a100", nodes=1, fabric="efa"), pairs("ring", "tree")),
        ("all_reduce", pcie_box(), {(name, way) for name in ("ring", "tree") for way in ("LL", "Simple")}),
        ("all_gather", servers("b200", nodes=1), pairs("ring") | {("nvls", "Simple")}),
        ("all_gather", servers("b200"), pairs("ring")),
        ("reduce_scatter", servers("h100", gpus=1), pairs("ring") | {("pat", "Simple")}),
        ("broadcast", servers("h100"), pairs("ring")),
        ("all_to_all", servers("h100"), {("pairwise", "Simple")}),
    ],
)
def test_what_nccl_chooses_from(op, graph, expected):
    assert names(op, graph) == expected


def test_a_gpu_of_unknown_generation_has_no_settings_of_early_ones():
    graph = servers("a100", fabric="efa")
    graph.graph["gpu"] = "unheard-of"
    assert names("all_reduce", graph) == pairs("ring", "tree")


def test_a_group_with_one_gpu_in_each_server_has_no_nvls():
    assert names("all_reduce", servers("h100"), (0, 8)) == pairs("ring", "tree")


def test_latencies_are_those_of_ncclss_tables():
    step = calibration().fabric("ib").step
    assert curve("all_reduce", "ring", "LL", servers(nodes=1)).latency == pytest.approx((6.6 + 14 * 0.6) * 1e-6)
    tree = curve("all_reduce", "tree", "LL", servers()).latency
    assert tree == pytest.approx((6.8 + 2 * (7 * 0.6 + 5.0)) * 1e-6 + 2 * step)
    ring = curve("all_gather", "ring", "Simple", servers()).latency
    assert ring == pytest.approx((8.4 + 14 * 3.4 + 14.0) * 1e-6 + step)


def test_data_for_a_gpu_before_hopper_are_flushed_over_the_network():
    step = calibration().fabric("ib").step
    for family, times in (("a100", 2), ("h100", 1)):
        tree = curve("all_reduce", "tree", "Simple", servers(family)).latency
        assert tree == pytest.approx((8.4 + 2 * (7 * 4.0 + 14.0)) * 1e-6 + 2 * times * step)


@pytest.mark.parametrize(("op", "fills"), [("all_gather", False), ("reduce_scatter", True), ("broadcast", True)])
def test_an_all_gather_keeps_every_link_of_a_ring_busy_from_its_first_step(op, fills):
    assert (curve(op, "ring", "Simple", servers()).fill > 0) == fills


def test_ll_is_capped_whatever_the_links_carry():
    assert 1 / curve("all_gather", "ring", "LL", servers("a100", nodes=1)).per_byte == pytest.approx(87.7e9 * 8 / 7)


def test_a_slow_link_is_felt():
    graph = servers()
    before = curve("all_gather", "ring", "Simple", graph).per_byte
    graph.edges["host1/nic3", "network"]["bandwidth"] = 5e9
    after = curve("all_gather", "ring", "Simple", graph)
    assert after.per_byte == pytest.approx(10 * before)
    assert after.link.source == "host1/nic3"


def test_latency_grows_with_the_network_on_the_way():
    graph = servers()
    before = curve("all_reduce", "tree", "LL", graph).latency
    graph.edges["host0/nic0", "network"]["latency"] = 1e-3
    assert curve("all_reduce", "tree", "LL", graph).latency > before + 1e-3


def test_an_unknown_family_and_fabric_are_priced():
    graph = servers()
    del graph.graph["gpu"], graph.graph["fabric"]
    assert names("all_reduce", graph) == pairs("ring", "tree")
