"""Like servers, of which a few stand for all: collectives cost what they cost on the whole graph."""

from __future__ import annotations

import pytest

from simcoll.errors import TopologyError
from simcoll.plan.network import network_asked, network_of
from simcoll.plan.planning import plan
from simcoll.topology.clusters import cluster
from simcoll.topology.request import TopologyRequest

OPS = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")


@pytest.mark.parametrize(("gpu", "nodes"), [("h100", 6), ("gb200", 54), ("l40s", 5)])
@pytest.mark.parametrize("stride", [1, 2, 3, 8, 16, 32])
def test_a_few_domains_stand_for_all(gpu: str, nodes: int, stride: int) -> None:
    whole, folded = network_of(cluster(gpu=gpu, nodes=nodes)), network_asked(TopologyRequest(None, gpu, nodes))
    assert (folded.gpus, folded.family, folded.capacity) == (whole.gpus, whole.family, whole.capacity)
    assert len(folded.graph) < len(whole.graph)
    groups = [range(start, start + stride * size, stride) for start in (0, 1, 5) for size in (2, 8, 24, 32)]
    for group in (group for group in groups if group[-1] < whole.gpus):
        for op in OPS:
            for size in (1000, 1 << 20, 1 << 28):
                assert folded.seconds(op, size, group) == pytest.approx(whole.seconds(op, size, group), rel=1e-9)
    pair = range(3, 3 + 2 * stride, stride)
    assert folded.seconds("send", 1 << 24, pair) == pytest.approx(whole.seconds("send", 1 << 24, pair), rel=1e-9)


def test_the_graph_of_a_large_cluster_is_not_larger() -> None:
    small, large = (network_asked(TopologyRequest(None, "h100", nodes)) for nodes in (128, 2048))
    assert large.gpus == 16_384
    assert len(small.graph) == len(large.graph)
    assert plan("llama3-8b", gpu="h100", nodes=2048).layout.gpus == 16_384


def test_a_cluster_that_cannot_be_is_refused() -> None:
    with pytest.raises(TopologyError, match="nics_per_node is 0"):
        network_asked(TopologyRequest(None, "h100", 100, nics_per_node=0))
