"""ASTRA-sim's network files: dimensions, GiB/s, nanoseconds."""

import json

import networkx as nx
import pytest

from simcoll.topology.file import read_topology
from simcoll.topology.graph import TopologyError, check, ranks

NETWORK = {"topology": ["Ring", "FullyConnected", "Switch"], "npus_count": [4, 3, 2]} | {
    "bandwidth": [200.0, 100, 50],
    "latency": [50, 500.0, 2000],
}


def read(tmp_path, text, ending="json"):
    path = tmp_path / f"network.{ending}"
    path.write_text(text if isinstance(text, str) else json.dumps(text, indent=1), encoding="utf-8")
    graph = read_topology(path)
    check(graph)
    return graph


def test_each_dimension_joins_what_differs_in_it_alone(tmp_path):
    graph = read(tmp_path, NETWORK)
    assert len(ranks(graph)) == 24
    assert graph.edges["npu0", "npu1"] == {"bandwidth": 200 * 2**30, "latency": pytest.approx(50e-9), "link": "network"}
    assert set(graph["npu0"]) == {"npu1", "npu3", "npu4", "npu8", "dimension2/switch0"}
    assert nx.shortest_path(graph, "npu0", "npu12") == ["npu0", "dimension2/switch0", "npu12"]
    assert graph.edges["npu12", "dimension2/switch0"]["bandwidth"] == 50 * 2**30
    assert graph.out_degree("npu23") == 5


def test_yaml_with_comments(tmp_path):
    text = (
        "# one server\ntopology: [ Switch ]  # or Ring\nnpus_count: [ 8 ]\nbandwidth: [ 400.0 ]\nlatency: [ 936.25 ]\n"
    )
    graph = read(tmp_path, text, "yml")
    assert (len(ranks(graph)), graph.number_of_edges()) == (8, 16)


def test_a_ring_of_two_is_one_link(tmp_path):
    graph = read(tmp_path, {"topology": ["Ring"], "npus_count": [2], "bandwidth": [1], "latency": [0]})
    assert graph.number_of_edges() == 2


@pytest.mark.parametrize(
    ("change", "line", "message"),
    [
        ({"topology": ["Torus", "Ring", "Ring"]}, 3, "'Torus', expected one of Ring, FullyConnected, Switch"),
        ({"npus_count": [4, 3]}, 7, "has 2 entries, expected as many as topology"),
        ({"npus_count": [4, 1, 2]}, 9, "expected a whole number above 1"),
        ({"npus_count": [4, True, 2]}, 9, "expected a whole number above 1"),
        ({"bandwidth": [1, 0, 1]}, 14, "expected GB/s above 0"),
        ({"latency": [1, -1, 1]}, 19, "expected nanoseconds of at least 0"),
        ({"latency": "1"}, 17, "latency expected a list"),
        ({"npus_count": [4, 10**6, 2]}, 7, "too large"),
        ({"npus_count": [2, 50000, 2]}, 7, "too large"),
    ],
)
def test_a_wrong_entry_is_named(tmp_path, change, line, message):
    with pytest.raises(TopologyError, match=rf"line {line}: .*{message}"):
        read(tmp_path, {**NETWORK, **change})


def test_a_missing_list_is_named(tmp_path):
    with pytest.raises(TopologyError, match="has no bandwidth, expected one"):
        read(tmp_path, {key: value for key, value in NETWORK.items() if key != "bandwidth"})
