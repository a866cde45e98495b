"""Presets: each row builds what it says."""

import networkx as nx
import pytest

from simcoll.topology.graph import TopologyError, check, hosts, ranks
from simcoll.topology.presets import PRESETS, preset


@pytest.mark.parametrize("row", [row for row in PRESETS.values() if row.nodes < 100], ids=lambda row: row.name)
def test_a_preset_is_what_its_row_says(row):
    graph = preset(row.name.upper())
    check(graph)
    assert graph.graph | {"name": row.name, "gpu": row.gpu, "fabric": row.fabric, "cpu": row.cpu} == graph.graph
    assert len(ranks(graph)) == row.nodes * row.gpus
    assert len(hosts(graph)) == row.nodes
    nics = [node for node, attributes in graph.nodes.items() if attributes["kind"] == "nic"]
    assert len(nics) == row.nodes * row.nics
    assert nx.is_strongly_connected(graph)
    assert row.source


@pytest.mark.parametrize("name", ["dgx-h100", "pcie-8-2s", "aws-p4d.24xlarge", "rail-optimised", "dgx1-v100"])
def test_nodes_can_be_chosen(name):
    assert len(hosts(preset(name, nodes=3))) == 3


def test_each_v100_of_the_cube_mesh_has_six_links():
    graph = preset("dgx1-v100")
    for gpu in ranks(graph):
        links = [edge["bandwidth"] for edge in graph[gpu].values() if edge["link"] == "nvlink"]
        assert (len(links), sum(links)) == (4, 6 * 20e9)


def test_the_gpu_of_a_box_or_a_tree_can_be_chosen():
    assert preset("pcie-8-1s", gpu="L40S").graph["gpu"] == "l40s"
    assert len(ranks(preset("fat-tree-2", gpu="gb200", nodes=18))) == 72


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "dgx-h10"}, "unknown preset 'dgx-h10', expected dgx-h100"),
        ({"name": "dgx-h100", "gpu": "a100"}, "has h100 GPUs"),
        ({"name": "dgx-h100", "nodes": 0}, "nodes is 0"),
        ({"name": "pcie-4-1s", "gpu": "zx81"}, "unknown GPU family"),
    ],
)
def test_what_is_no_preset_is_named(arguments, message):
    with pytest.raises(TopologyError, match=message):
        preset(**arguments)
