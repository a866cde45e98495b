"""``nvidia-smi topo -m``: switches, meshes, bridges, NICs, and the forms that its text takes."""

import networkx as nx
import pytest

from simcoll.topology.file import read_topology
from simcoll.topology.graph import TopologyError, check, hosts, ranks
from simcoll.topology.import_hints import Hints


def matrix(devices, cell, affinity=lambda device: "0-31\t0\tN/A", separator="\t"):
    head = ["", *devices, "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"]
    rows = [separator.join(head)]
    for one in devices:
        cells = [" X " if one == other else cell(one, other) for other in devices]
        rows.append(separator.join([one, *cells, *([affinity(one)] if one.startswith("GPU") else [])]))
    return "\n".join(rows) + "\n\nLegend:\n\n  X    = Self\n  NV#  = Connection traversing # NVLinks\n"


def read(tmp_path, text, **hints):
    path = tmp_path / "topo.txt"
    path.write_text(text, encoding="utf-8")
    graph = read_topology(path, Hints(**hints))
    check(graph)
    return graph


def devices(gpus, nics=0):
    return [*(f"GPU{n}" for n in range(gpus)), *(f"NIC{n}" for n in range(nics))]


def number(device):
    return int(device[3:])


def hgx(one, other):
    """Eight GPUs on NVSwitches; NIC n beside GPU 7 - n; four of each on a socket."""
    if one[0] == other[0] == "G":
        return "NV18"
    places = [number(device) if device[0] == "G" else 7 - number(device) for device in (one, other)]
    return "PIX" if places[0] == places[1] else "NODE" if places[0] // 4 == places[1] // 4 else "SYS"


def socket(device):
    return f"{number(device) // 4 * 64}-{number(device) // 4 * 64 + 63}\t{number(device) // 4}\tN/A"


@pytest.mark.parametrize("separator", ["\t", "    "])
def test_nvswitches_and_a_nic_beside_each_gpu(tmp_path, separator):
    text = matrix(devices(8, 8), hgx, socket, separator) + "NIC Legend:\n\n  NIC0: mlx5_4\n  NIC1: mlx5_5\n"
    graph = read(tmp_path, text, gpu="h20", nic_gbps=400)
    assert graph.edges["host0/gpu0", "host0/nvswitch"]["bandwidth"] == pytest.approx(18 * 20.6e9)
    assert nx.shortest_path_length(graph, "host0/gpu0", "host0/nic7") == 2
    assert sum(attributes["kind"] == "cpu" for attributes in graph.nodes.values()) == 2
    assert graph.nodes["host0/nic0"]["device"] == "mlx5_4"
    assert graph.edges["host0/nic0", "network"]["bandwidth"] == 50e9
    assert len(hosts(read(tmp_path, text, nic_gbps=400, nodes=2))) == 2


def test_colour_codes_and_text_around_the_table(tmp_path):
    text = (
        matrix(devices(2), lambda one, other: "NV12")
        .replace("GPU0", "\x1b[4mGPU0", 1)
        .replace("GPU1", "GPU1\x1b[0m", 1)
    )
    graph = read(tmp_path, f"$ nvidia-smi topo -m\n{text}")
    assert graph.edges["host0/gpu0", "host0/gpu1"]["bandwidth"] == 12 * 20e9
    assert "a100 are assumed" in graph.graph["notes"][0]


def test_a_mesh_is_direct_links(tmp_path):
    names = [*devices(4), "mlx5_0"]
    text = matrix(names, lambda one, other: "NV2" if one[0] == other[0] == "G" else "NODE", lambda _: "0,2,4\t0")
    graph = read(tmp_path, text)
    assert graph.graph["gpu"] == "v100"
    assert graph.edges["host0/gpu0", "host0/gpu3"]["bandwidth"] == 40e9
    assert "host0/nvswitch" not in graph
    assert nx.shortest_path_length(graph, "host0/gpu0", "host0/mlx5_0") == 2


def test_bridged_pairs_on_two_sockets(tmp_path):
    def cell(one, other):
        pair = number(one) // 2 == number(other) // 2
        return "NV12" if pair else "NODE" if number(one) // 4 == number(other) // 4 else "SYS"

    graph = read(tmp_path, matrix(devices(8), cell, socket))
    assert sum(edge["link"] == "nvlink" for *_, edge in graph.edges(data=True)) == 8
    assert nx.shortest_path(graph, "host0/gpu0", "host0/gpu7") == [
        "host0/gpu0",
        "host0/cpu0",
        "host0/cpu1",
        "host0/gpu7",
    ]


def test_a_pcie_box_shows_its_switches(tmp_path):
    def cell(one, other):
        return (
            "PIX"
            if number(one) // 2 == number(other) // 2
            else "PXB"
            if number(one) // 4 == number(other) // 4
            else "SYS"
        )

    graph = read(tmp_path, matrix(devices(8), cell), gpu="l40s")
    assert sum(attributes["kind"] == "pcie" for attributes in graph.nodes.values()) == 6
    assert nx.shortest_path_length(graph, "host0/gpu0", "host0/gpu1") == 2
    assert nx.shortest_path_length(graph, "host0/gpu0", "host0/gpu3") == 4
    assert nx.shortest_path_length(graph, "host0/gpu0", "host0/gpu7") == 7
    assert len(ranks(graph)) == 8


def test_rows_of_nics_and_affinities_may_be_missing(tmp_path):
    graph = read(tmp_path, "        GPU0  GPU1  mlx5_0\nGPU0     X    PHB   PIX\nGPU1    PHB    X    PHB\n")
    assert nx.shortest_path_length(graph, "host0/gpu0", "host0/mlx5_0") == 2
    assert nx.shortest_path_length(graph, "host0/gpu1", "host0/mlx5_0") == 3


HEAD = "\tGPU0\tGPU1\tCPU Affinity\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEAD + "GPU0\tX\tNV4\t0\nGPU1\tNV3\tX\t0\n", "line 3: NV3 from GPU1 to GPU0, but NV4"),
        (HEAD + "GPU0\tX\tWIFI\t0\n", "line 2: 'WIFI' between GPU0 and GPU1, expected NV#, PIX"),
        (HEAD + "GPU0\tPIX\tX\t0\n", "line 2: 'PIX' between GPU0 and GPU0, expected X"),
        (HEAD + "GPU0\tX\n", "line 2: 1 connections of GPU0, expected 2"),
        (HEAD + "GPU0\tX\tPIX\t0\n", "line 1: a column for GPU1 but no row"),
        ("\tGPU0\tGPU0\n", "line 1: a device twice"),
        ("\tGPU0\t<b>\n", "'<b>' is no name of a device"),
    ],
)
def test_a_table_that_is_wrong_names_the_line(tmp_path, text, message):
    with pytest.raises(TopologyError, match=message):
        read(tmp_path, text)
