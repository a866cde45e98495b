"""The topology format: round trips, its short forms, its schema, and errors that name line and expectation."""

import json
import re
from pathlib import Path

import jsonschema  # type: ignore[import-untyped]
import networkx as nx
import numpy as np
import pytest

import simcoll
from simcoll.topology.file import SCHEMA, document_of, read_topology, write_topology
from simcoll.topology.graph import TopologyError, flat, hosts
from simcoll.topology.import_hints import Hints
from simcoll.topology.presets import PRESETS, preset

SCHEMA_FILE = Path(simcoll.__file__).parent / "topology" / "topology.schema.json"
SMALL = [name for name, row in PRESETS.items() if row.nodes == 1]


def same(one, other):
    assert dict(one.nodes(data=True)) == dict(other.nodes(data=True))
    assert {edge[:2]: edge[2] for edge in one.edges(data=True)} == {
        edge[:2]: edge[2] for edge in other.edges(data=True)
    }
    assert one.graph == other.graph


def read(tmp_path, text, name="t.json"):
    path = tmp_path / name
    path.write_text(text if isinstance(text, str) else json.dumps(text, indent=1), encoding="utf-8")
    return read_topology(path)


@pytest.mark.parametrize("ending", ["json", "yaml"])
@pytest.mark.parametrize("name", SMALL)
def test_what_is_written_is_read_back(tmp_path, name, ending):
    graph = preset(name)
    write_topology(tmp_path / f"t.{ending}", graph)
    same(read_topology(tmp_path / f"t.{ending}"), graph)


def test_what_differs_by_direction_or_is_not_known_survives(tmp_path):
    graph = flat(3, 1e9, 0)
    graph.edges["gpu0", "switch"]["bandwidth"] = np.float64(5)
    graph.remove_edge("switch", "gpu1")
    graph.nodes["gpu0"]["colour"] = "red"
    graph.edges["gpu2", "switch"]["errors"] = [1, 2]
    graph.graph["calibration"] = {"all_reduce": 1.5}
    write_topology(tmp_path / "t.json", graph)
    same(read_topology(tmp_path / "t.json"), graph)


def test_any_networkx_graph_can_be_written(tmp_path):
    graph: nx.DiGraph[object] = nx.DiGraph()
    graph.add_node(0, kind="gpu", host=("rack", 1))
    graph.add_node(1, kind="gpu", host=("rack", 2))
    graph.add_edge(0, 1, bandwidth=1, latency=0)
    write_topology(tmp_path / "t.json", graph)
    assert list(read_topology(tmp_path / "t.json").edges) == [("0", "1")]


@pytest.mark.parametrize("change", [{"bandwidth": float("inf")}, {"object": object()}])
def test_what_json_cannot_say_is_refused(tmp_path, change):
    graph = flat(2, 1e9, 0)
    graph.edges["gpu0", "switch"].update(change)
    with pytest.raises(TopologyError, match="cannot hold"):
        write_topology(tmp_path / "t.json", graph)


def test_a_file_that_cannot_be_written(tmp_path):
    with pytest.raises(TopologyError, match="cannot write"):
        write_topology(tmp_path / "none" / "t.json", flat(2, 1, 0))


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({"flat": {"ranks": 4, "bandwidth": 50e9, "latency": 1e-6}}, flat(4, 50e9, 1e-6)),
        ({"cluster": {"gpu": "a100", "nodes": 2, "nic_gbps": 200}}, simcoll.cluster(gpu="a100", nodes=2, nic_gbps=200)),
        ({"preset": "dgx-h100", "count": 2}, preset("dgx-h100", nodes=2)),
    ],
)
def test_short_forms(tmp_path, document, expected):
    same(read(tmp_path, {"schema": SCHEMA, **document}), expected)
    jsonschema.validate({"schema": SCHEMA, **document}, json.loads(SCHEMA_FILE.read_text()))


def test_a_file_with_one_server_can_be_repeated(tmp_path):
    write_topology(tmp_path / "t.json", preset("dgx-a100"))
    graph = read_topology(tmp_path / "t.json", Hints(nodes=3))
    assert len(hosts(graph)) == 3
    assert {edge[:2] for edge in graph.edges} == {edge[:2] for edge in preset("dgx-a100", nodes=3).edges}
    with pytest.raises(TopologyError, match="states its own hardware; leave gpu out"):
        read_topology(tmp_path / "t.json", Hints(gpu="h100"))


@pytest.mark.parametrize("name", ["dgx-h100", "pcie-8-2s", "aws-p5.48xlarge", "dgx1-v100"])
def test_what_is_written_fits_the_schema(name):
    schema = json.loads(SCHEMA_FILE.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(document_of(preset(name)), schema)


GOOD = {
    "schema": SCHEMA,
    "nodes": [{"name": "a", "kind": "gpu", "rank": 0}, {"name": "b", "kind": "gpu", "rank": 1}],
    "links": [{"from": "a", "to": "b", "bandwidth": 1e9, "latency": 1e-6, "link": "nvlink"}],
}


def changed(path, value):
    document = json.loads(json.dumps(GOOD))
    part = document
    for step in path[:-1]:
        part = part[step]
    if value is None:
        del part[path[-1]]
    else:
        part[path[-1]] = value
    return document


WRONG = [
    (("schema",), "simcoll.topology/9", 2, "expected 'simcoll.topology/1'"),
    (("schema",), None, 1, "has no 'schema'"),
    (("nodes",), [], 6, "is 'a', expected the name of a node"),
    (("nodes", 0, "rank"), None, 1, "expected 0 to 1"),
    (("nodes",), {}, 3, "nodes is an object, expected a list"),
    (("nodes",), None, 1, "0 of nodes, cluster, preset, flat, expected exactly one"),
    (("preset",), "dgx-h100", 1, "2 of nodes"),
    (("count",), 2, 24, "count without preset"),
    (("colour",), "red", 24, "colour is unknown, expected one of schema, name"),
    (("nodes", 1), 7, 9, r"nodes\[1\] is 7, expected an object"),
    (("nodes", 1, "kind"), "toaster", 11, r"nodes\[1\].kind is 'toaster', expected one of gpu"),
    (("nodes", 1, "name"), "a", 10, "expected a name of its own"),
    (("nodes", 1, "rank"), "1", 12, "rank is '1', expected a whole number"),
    (("nodes", 1, "rank"), True, 12, "expected a whole number"),
    (("nodes", 1, "rank"), 5, 1, "ranks 0, 5, expected 0 to 1"),
    (("nodes", 1, "host"), [1], 13, "host is a list, expected a text"),
    (("nodes", 1, "attributes"), {"kind": "cpu"}, 14, "one of the format's own keys"),
    (("attributes",), {"notes": 3}, 25, "no list of texts"),
    (("links", 0, "to"), "c", 18, r"links\[0\].to is 'c', expected the name of a node"),
    (("links", 0, "to"), "a", 16, "link to itself"),
    (("links", 0, "bandwidth"), 0, 19, "bandwidth is 0, expected bytes/s above 0"),
    (("links", 0, "bandwidth"), "1 GB/s", 19, "expected bytes/s above 0"),
    (("links", 0, "latency"), -1, 20, "expected seconds of at least 0"),
    (("links", 0, "latency"), None, 16, "has no 'latency'"),
    (("links", 0, "link"), "rope", 21, "expected one of nvlink"),
]


@pytest.mark.parametrize(("path", "value", "line", "message"), WRONG)
def test_an_error_names_the_line_and_what_was_expected(tmp_path, path, value, line, message):
    with pytest.raises(TopologyError, match=rf"t.json, line {line}: .*{message}") as caught:
        read(tmp_path, changed(path, value))
    assert "\n" not in str(caught.value)


def test_the_unchanged_document_is_read(tmp_path):
    assert read(tmp_path, GOOD).edges["b", "a"] == {"bandwidth": 1e9, "latency": 1e-6, "link": "nvlink"}


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"cluster": {"gpu": "h9"}}, "cluster: unknown GPU family 'h9'"),
        ({"cluster": {"gpus": 8}}, "cluster.gpus is unknown"),
        ({"cluster": {"nodes": "two"}}, "nodes is 'two'"),
        ({"cluster": {"gpu": [], "fabric": {}}}, "unknown GPU family"),
        ({"flat": {"ranks": 4}}, "flat has no 'bandwidth'"),
        ({"flat": {"ranks": 10**12, "bandwidth": 1, "latency": 0}}, "at most"),
        ({"preset": "dgx"}, "preset: unknown preset 'dgx', expected .*see `simcoll topology list`"),
    ],
)
def test_errors_of_the_short_forms(tmp_path, document, message):
    with pytest.raises(TopologyError, match=f"t.json, line [234]: .*{message}"):
        read(tmp_path, {"schema": SCHEMA, **document})


PAGE = Path(__file__).resolve().parents[2] / "docs" / "topologies.md"


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def test_the_files_of_the_page_on_topologies_are_valid(tmp_path):
    for block in blocks("json"):
        read(tmp_path, block)
        jsonschema.validate(json.loads(block), json.loads(SCHEMA_FILE.read_text()))
    for block in blocks("yaml"):
        read(tmp_path, block, "t.yaml")
        commented = re.sub(r"(?m)^cluster:.*\n", "", block).replace("# preset", "preset").replace("# count", "count")
        assert read(tmp_path, commented, "t.yaml").graph["name"] == "dgx-h100"
