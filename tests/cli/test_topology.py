"""``simcoll topology`` as a user meets it, the options that ask for a topology, and the pictures."""

import argparse
import json
import re
from xml.etree import ElementTree

import pytest

from simcoll.cli import main
from simcoll.cli.arguments import add_topology_arguments, topology_request
from simcoll.topology.clusters import cluster
from simcoll.topology.fat_trees import fat_tree, rail_optimised
from simcoll.topology.file import read_topology, write_topology
from simcoll.topology.graph import TopologyError, flat, hosts, ranks
from simcoll.topology.presets import PRESETS, preset
from simcoll.topology.summary import render_tree, stacked, summarise
from simcoll.topology.svg import draw

SVG = "{http://www.w3.org/2000/svg}"


def run(capsys, *arguments):
    code = main(["topology", *map(str, arguments)])
    return (code, *capsys.readouterr())


def options(*arguments):
    parser = argparse.ArgumentParser()
    add_topology_arguments(parser)
    return topology_request(parser.parse_args(arguments))


@pytest.mark.parametrize(("action", "name"), [("draw", "picture.svg"), ("import", "cluster.json")])
@pytest.mark.parametrize("plain", [[], ["--plain"]])
def test_the_path_of_a_file_is_not_broken_where_it_is_piped(tmp_path, capsys, action, name, plain):
    out = tmp_path / ("folder " * 12).strip() / name
    out.parent.mkdir()
    code, said, _ = run(capsys, action, "dgx-h100", "--out", out, *plain)
    assert code == 0
    assert out.is_file()
    (line,) = said.splitlines()
    assert line.startswith(str(out))


def test_list_names_every_preset(capsys):
    code, out, err = run(capsys, "list", "--json")
    document = json.loads(out)
    assert (code, err, document["schema"]) == (0, "", "simcoll.presets/1")
    assert [row["name"] for row in document["presets"]] == list(PRESETS)
    assert "dgx-h100" in run(capsys, "list")[1]


def test_show_counts(capsys):
    code, out, _ = run(capsys, "show", "dgx-h100", "--nodes", 2)
    assert code == 0
    assert "dgx-h100: 16 ranks, 2 hosts (h100, ib)" in out
    document = json.loads(run(capsys, "show", "--gpu", "gb200", "--nodes", 18, "--json")[1])
    assert (document["ranks"], document["hosts"], document["nodes"]["nvswitch"]) == (72, 18, 1)
    assert {link["link"] for link in document["links"]} == {"nvlink", "pcie", "network"}


def test_import_writes_what_can_be_read_again(capsys, tmp_path):
    code, out, err = run(capsys, "import", "dgx-a100")
    (tmp_path / "a.json").write_text(out)
    assert (code, err, len(ranks(read_topology(tmp_path / "a.json")))) == (0, "", 8)
    code, out, _ = run(capsys, "import", tmp_path / "a.json", "--nodes", 2, "--out", tmp_path / "b.yaml", "--json")
    assert (code, json.loads(out)["file"]) == (0, str(tmp_path / "b.yaml"))
    assert len(ranks(read_topology(tmp_path / "b.yaml"))) == 16


def test_import_says_what_it_assumed(capsys, tmp_path):
    (tmp_path / "m.txt").write_text("\tGPU0\tGPU1\nGPU0\tX\tNV4\nGPU1\tNV4\tX\n")
    code, out, err = run(capsys, "import", tmp_path / "m.txt", "--json")
    assert (code, json.loads(out)["schema"]) == (0, "simcoll.topology/1")
    assert err.startswith("simcoll: note: the matrix does not name the GPUs")


def test_draw_a_tree_and_a_picture(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "400")  # a narrow terminal folds the path
    code, out, _ = run(capsys, "draw", "dgx1-v100")
    assert code == 0
    assert "gpu7 by NVLink" in out
    code, out, _ = run(capsys, "draw", "--gpu", "h100", "--nodes", 64, "--out", tmp_path / "x.svg")
    assert (code, out.split()) == (0, [str(tmp_path / "x.svg")])
    assert ElementTree.parse(tmp_path / "x.svg").getroot().tag == f"{SVG}svg"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("show", "dgx-h10"), "unknown preset 'dgx-h10', expected dgx-h100"),
        (("show", "none.json"), "cannot read none.json: No such file"),
        (("show",), "give --topology FILE|PRESET, or --gpu FAMILY --nodes N"),
        (("show", "dgx-h100", "--topology", "dgx-a100"), "both dgx-h100 and --topology dgx-a100"),
        (("show", "dgx-h100", "--nic-gbps", "100"), "leave --nic-gbps out"),
        (("show", "--gpu", "h9"), "unknown GPU family 'h9'"),
        (("show", "--gpu", "h100", "--nodes", "-3"), "nodes is -3"),
        (("import", "."), "Is a directory"),
        (("import", "dgx-h100", "--out", "none/x.json"), "cannot write none/x.json"),
        (("draw", "dgx-h100", "--out", "none/x.svg"), "cannot write none/x.svg"),
    ],
)
def test_what_is_wrong_is_one_line_and_exit_code_2(capsys, monkeypatch, tmp_path, arguments, message):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err
    code, out, _ = run(capsys, *arguments, "--json")
    assert (code, json.loads(out)["exit_code"]) == (2, 2)


def test_options_ask_for_a_cluster_a_preset_or_a_file(tmp_path):
    assert options("--gpu", "h100", "--nodes", "2").build().graph["name"] == "2 x 8 h100"
    graph = options("--gpu", "a100", "--nics-per-node", "4", "--nic-gbps", "100", "--fabric", "efa").build()
    assert graph.edges["host0/nic3", "network"]["bandwidth"] == 12.5e9
    assert options("--topology", "DGX-H100", "--nodes", "2").build().graph["name"] == "dgx-h100"
    write_topology(tmp_path / "t.json", flat(4, 1e9, 0))
    assert len(ranks(options("--topology", str(tmp_path / "t.json")).build())) == 4
    with pytest.raises(TopologyError, match="no topology is given"):
        options().build()


def test_whether_a_topology_was_asked_for():
    assert [options(*given).is_given for given in ((), ("--topology", "x"), ("--nodes", "2"))] == [
        False,
        True,
        True,
    ]


@pytest.mark.parametrize(
    "name", ["dgx-h100", "dgx1-v100", "gb200-nvl72", "fat-tree-2", "aws-p5.48xlarge", "azure-ncv4"]
)
def test_a_picture_is_well_formed_and_of_a_readable_size(name):
    root = ElementTree.fromstring(draw(preset(name)))
    boxes = root.findall(f"{SVG}g")
    width = float(root.attrib["viewBox"].split()[2])
    assert 8 < len(boxes) < 200
    assert width < 12_000
    places = [(box.find(f"{SVG}rect").attrib["x"], box.find(f"{SVG}rect").attrib["y"]) for box in boxes]
    assert len(set(places)) == len(places)


def test_names_are_escaped():
    graph = flat(2, 1e9, 0)
    graph.add_node('<script>"&', kind="nic")
    graph.graph["name"] = "</svg><script>\x1b[31m"
    text = draw(graph)
    assert "<script" not in text
    assert "\x1b" not in text
    ElementTree.fromstring(text)


def test_a_tree_shows_any_graph(capsys):
    import rich

    graph = flat(3, 1e9, 0)
    graph.add_edge("gpu0", "gpu1", bandwidth=1e9, latency=0)
    rich.print(render_tree(graph))
    assert "1 more host like 1: 2" in capsys.readouterr().out
    assert summarise(graph).hosts == 3


LARGE = {
    "one network": lambda: cluster(gpu="h100", nodes=64),
    "a fat tree": lambda: fat_tree(nodes=64, oversubscription=2),
    "rails": lambda: rail_optimised(nodes=64),
    "racks": lambda: preset("gb200-nvl72", nodes=72),
    "4,096 GPUs": lambda: cluster(gpu="h100", nodes=512),
    "a star of 4,096": lambda: flat(4096, 1e9, 0),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_a_large_topology_is_drawn_as_stacks(name):
    graph = LARGE[name]()
    found = stacked(graph)
    assert set(found.place) == set(graph)
    assert set(found.place.values()) == set(found.graph)
    assert len(found.graph) <= 130
    text = draw(graph)
    root = ElementTree.fromstring(text)
    boxes = root.findall(f"{SVG}g")
    assert len(boxes) == len(found.graph)
    assert len(text) < 100_000
    # Every node is drawn, by itself or in a stack that says how many.
    hosts_in_stacks = sum(data["members"] for node, data in found.graph.nodes(data=True) if node[0] == "hosts")
    assert 1 + hosts_in_stacks == len(hosts(graph))


def test_a_bottleneck_stands_out_in_words_too(capsys, tmp_path):
    code = main(["estimate", "all_reduce", "--gpu", "h100", "--nodes", "64", "--svg", str(tmp_path / "x.svg")])
    assert (code, capsys.readouterr().err) == (0, "")
    root = ElementTree.parse(tmp_path / "x.svg").getroot()
    said = [text.text for text in root.findall(f"{SVG}text") if text.attrib.get("class") in ("on", "said")]
    assert said[0] == "!"
    assert said[1].startswith("! bottleneck: ")
    assert "bottleneck: " in str(root.findtext(f"{SVG}desc"))
    assert [path.attrib["class"] for path in root.findall(f"{SVG}path")].count("mark") == 1


def test_a_bottleneck_between_hosts_of_a_stack_is_the_stacks():
    graph = cluster(gpu="h100", nodes=64)
    root = ElementTree.fromstring(draw(graph, {("host60/nic3", "network"): "slow"}))
    assert [path.attrib["class"] for path in root.findall(f"{SVG}path")].count("mark") == 1


def test_a_picture_needs_nothing_beside_itself_and_is_told_to_those_who_do_not_see_it():
    text = draw(preset("dgx-h100"))
    root = ElementTree.fromstring(text)
    assert (root.attrib["role"], root[0].tag, root[1].tag) == ("img", f"{SVG}title", f"{SVG}desc")
    assert "8 ranks on 1 host: 8 gpu" in str(root[1].text)
    assert "prefers-color-scheme:dark" in str(root.findtext(f"{SVG}style"))
    rest = text.replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?:|href|url\(|@import|<script|<image", rest)
    # A class for everything that has a colour, with a rule in light and one in dark.
    used = {name for element in root.iter() for name in element.attrib.get("class", "").split()}
    style = str(root.findtext(f"{SVG}style"))
    assert all(style.count(f".{name}") >= 2 for name in used - {"simcoll-topology"})
