"""NCCL's topology and graph XML: pre-fused files of clouds, full dumps, and what is refused."""

import networkx as nx
import pytest

from simcoll.topology.file import read_topology
from simcoll.topology.graph import TopologyError, check, hosts, ranks
from simcoll.topology.import_hints import Hints


def pci(bus, kind, inside="", vendor="", speed="16 GT/s", width=16):
    codes = {"gpu": "0x030200", "ib": "0x020700", "ethernet": "0x020000", "switch": "0x060400"}
    identity = f' vendor="{vendor[0]}" device="{vendor[1]}"' if vendor else ""
    return (
        f'<pci busid="{bus}" class="{codes[kind]}"{identity} link_speed="{speed}" link_width="{width}">{inside}</pci>'
    )


def cpu(inside, numa=0, more='arch="x86_64" vendor="AuthenticAMD" familyid="23" modelid="49"'):
    return f'<cpu numaid="{numa}" {more}>\n{inside}\n</cpu>'


def system(*cpus):
    return f'<system version="1">\n{chr(10).join(cpus)}\n</system>\n'


def gpu(dev, sm, inside="", rank=None):
    number = "" if rank is None else f' rank="{rank}"'
    return f'<gpu dev="{dev}" sm="{sm}"{number} gdr="1">{inside}</gpu>'


def net(name, mbps, dev=0):
    return f'<nic><net name="{name}" dev="{dev}" speed="{mbps}" port="1" guid="0x1" gdr="1"/></nic>'


def read(tmp_path, text, **hints):
    path = tmp_path / "topo.xml"
    path.write_text(text, encoding="utf-8")
    graph = read_topology(path, Hints(**hints))
    check(graph)
    return graph


PREFUSED = system(
    *(
        cpu(
            pci(
                f"ffff:ff:0{socket}.0",
                "switch",
                "".join(
                    pci(f"000{socket}:0{position}:00.0", "gpu") + pci(f"010{socket}:0{position}:00.0", "ib")
                    for position in (1, 2)
                ),
            ),
            socket,
        )
        for socket in (0, 1)
    )
)
"""Two sockets, each with a PCIe Gen4 switch, two GPUs and two InfiniBand NICs, as clouds describe such servers."""


def test_a_prefused_file_alone_is_its_pci_tree(tmp_path):
    graph = read(tmp_path, PREFUSED)
    assert len(ranks(graph)) == 4
    assert nx.shortest_path_length(graph, "host0/gpu0", "host0/nic0") == 2
    assert nx.shortest_path_length(graph, "host0/gpu0", "host0/gpu3") == 5
    assert graph.edges["host0/gpu0", "host0/pcie0"]["bandwidth"] == 24e9
    assert graph.edges["host0/cpu0", "host0/cpu1"] == {"bandwidth": 16e9, "latency": 0.25e-6, "link": "cpu"}
    assert len(graph.graph["notes"]) == 2
    assert "network" not in graph


def test_what_a_prefused_file_leaves_out_can_be_said(tmp_path):
    graph = read(tmp_path, PREFUSED, gpu="h100", nic_gbps=400, nodes=3)
    assert len(hosts(graph)) == 3
    assert ranks(graph)[5] == "host1/gpu1"
    assert graph.edges["host2/gpu0", "host2/nvswitch"]["bandwidth"] == pytest.approx(370.8e9)
    assert graph.nodes["host2/nvswitch"]["sharp"]
    assert graph.edges["host1/nic0", "network"]["bandwidth"] == 50e9
    assert graph.graph["fabric"] == "ib"


def test_device_numbers_say_family_speed_and_fabric(tmp_path):
    devices = "".join(pci(f"0000:10:1{n}.0", "gpu", vendor=("0x10de", "0x20b0"), speed="8 GT/s") for n in (1, 2))
    nic = pci("0000:10:1b.0", "ethernet", vendor=("0x1d0f", "0xefa0"), speed="8 GT/s")
    graph = read(tmp_path, system(cpu(pci("ffff:ff:01.0", "switch", devices + nic))))
    assert (graph.graph["gpu"], graph.graph["fabric"]) == ("a100", "efa")
    assert graph.edges["host0/nic0", "network"]["bandwidth"] == 12.5e9
    assert graph.edges["host0/gpu0", "host0/nvswitch"]["bandwidth"] == 240e9


def test_eight_v100_are_a_cube_mesh(tmp_path):
    devices = "".join(pci(f"000{n}:00:00.0", "gpu") for n in range(8))
    graph = read(tmp_path, system(cpu(devices)), gpu="v100")
    assert sum(edge["link"] == "nvlink" for *_, edge in graph.edges(data=True)) == 32


def switched(dev, sm, links=18):
    inside = f'<nvlink target="fffffff:ff:ff.0" count="{links}" tclass="0x068000"/>'
    return gpu(dev, sm, inside, rank=dev)


def test_a_full_dump_with_nvswitches(tmp_path):
    split = "".join(
        f'<nvlink target="0000:0{n}:00.0" count="{count}" tclass="0x068000"/>' for n, count in ((5, 10), (6, 8))
    )
    devices = [gpu(dev, 90, split, rank=dev + 8) for dev in (1, 0)]
    inside = "".join(
        pci(f"0000:1{n}:00.0", "switch", pci(f"0000:1{n}:01.0", "gpu", device, speed="32.0 GT/s PCIe"))
        for n, device in enumerate(devices)
    )
    nic = pci("0000:20:00.0", "ib", net("mlx5_0", 400000), speed="32.0 GT/s PCIe")
    graph = read(
        tmp_path, system(cpu(inside + nic, more='arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143"'))
    )
    assert ranks(graph) == ("host0/gpu1", "host0/gpu0")  # rank 8 comes before rank 9, whatever the file's order
    assert graph.graph | {"gpu": "h100", "cpu": "intel"} == graph.graph
    assert graph.edges["host0/gpu0", "host0/nvswitch"]["bandwidth"] == pytest.approx(18 * 20.6e9)
    assert graph.edges["host0/nic0", "network"]["bandwidth"] == 50e9
    assert graph.nodes["host0/nic0"]["device"] == "mlx5_0"


def test_direct_links_are_summed_and_a_link_to_itself_is_left_out(tmp_path):
    def linked(own, others):
        links = "".join(f'<nvlink target="0000:0{n}:00.0" count="{count}" tclass="0x030200"/>' for n, count in others)
        return pci(f"0000:0{own}:00.0", "gpu", gpu(own, 80, links))

    inside = linked(1, [(2, 4), (2, 8), (1, 1)]) + linked(2, [(1, 12)]) + linked(3, [(1, 1)])
    graph = read(tmp_path, system(cpu(inside)))
    assert graph.edges["host0/gpu0", "host0/gpu1"]["bandwidth"] == graph.edges["host0/gpu1", "host0/gpu0"]["bandwidth"]
    assert graph.edges["host0/gpu0", "host0/gpu1"]["bandwidth"] == 12 * 20e9
    assert graph.edges["host0/gpu0", "host0/gpu2"]["bandwidth"] == 20e9
    assert "to itself" in graph.graph["notes"][0]


def test_several_hosts_in_a_dump_share_an_nvlink_domain(tmp_path):
    trays = [
        cpu(pci("0008:06:00.0", "gpu", switched(0, 100)), more=f'host_hash="{host}" arch="arm64"')
        for host in ("0xa", "0xb")
    ]
    graph = read(tmp_path, system(*trays))
    assert list(hosts(graph)) == ["host0", "host1"]
    assert graph.graph["gpu"] == "gb200"
    assert nx.shortest_path(graph, *ranks(graph))[1] == "domain0/nvswitch"


def test_what_nccl_writes_for_not_known_is_no_error(tmp_path):
    devices = pci("0:1", "gpu", gpu(0, 90, rank=-1)) + pci("0:2", "gpu", gpu(1, 90, rank=-1), width=0, speed="")
    more = 'arch="x86_64" vendor="GenuineIntel" familyid="-1" modelid="-1"'
    graph = read(tmp_path, system(cpu(devices, numa=-1, more=more), cpu("", numa=-1, more=more)))
    assert ranks(graph) == ("host0/gpu0", "host0/gpu1")
    assert graph.edges["host0/gpu1", "host0/cpu0"]["bandwidth"] == 12e9


def test_a_chip_to_chip_link_and_nics_without_speed(tmp_path):
    device = pci("000f:01:00.0", "gpu", gpu(0, 121, '<c2c bw="43125" count="8"/>'), speed="2.5 GT/s PCIe")
    graph = read(tmp_path, system(cpu(device + net("eth0", "-1"), more='arch="arm64"')))
    assert graph.edges["host0/gpu0", "host0/cpu0"]["bandwidth"] == 8 * 43125e6
    assert graph.edges["host0/nic0", "network"]["bandwidth"] == 1.25e9


def test_a_socket_named_below_each_cpu_is_one_nic(tmp_path):
    cpus = [cpu(pci(f"000{n}:00:00.0", "gpu", gpu(n, 100)) + net("eth0", 10000), n) for n in (0, 1)]
    graph = read(tmp_path, system(*cpus))
    assert sum(attributes["kind"] == "nic" for attributes in graph.nodes.values()) == 1
    assert {"host0/cpu0", "host0/cpu1"} <= set(graph["host0/nic0"])


def test_ports_of_one_nic_share_its_pcie_link(tmp_path):
    two = "<nic>" + "".join(f'<net name="mlx5_{n}" dev="{n}" speed="200000"/>' for n in (0, 1)) + "</nic>"
    graph = read(tmp_path, system(cpu(pci("0:1", "gpu", gpu(0, 80)) + pci("0:2", "ib", two))))
    assert set(graph["host0/nic0"]) & set(graph["host0/nic1"]) == {"network", "host0/pcie0"}


def test_devices_without_a_class_need_a_word(tmp_path):
    text = system(cpu("".join(f'<pci busid="0000:00:1{n}.0"/>\n' for n in range(3))))
    with pytest.raises(TopologyError, match=r"line 3: <pci> has no class.*of the 3 such devices.*gpus_per_node"):
        read(tmp_path, text)
    graph = read(tmp_path, text, gpus_per_node=2, gpu="a10g", nic_gbps=100)
    assert (len(ranks(graph)), graph.edges["host0/nic0", "network"]["bandwidth"]) == (2, 12.5e9)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('<!DOCTYPE a [<!ENTITY b "c">]>\n<system/>', "line 1: a document type"),
        ('<?xml version="1.0"?>\n<!DOCTYPE system SYSTEM "http://x/y">\n<system/>', "line 2: a document type"),
        ("<system>\n<cpu>\n</system>", "line 3: no XML: mismatched tag"),
        ("<system>&boom;</system>", "no XML: undefined entity"),
        ("<system/>", "line 1: <system> has no GPU"),
        ("<topology/>", "<topology> is the outermost element, expected <system>"),
        ("<system>" * 100, "nested too deeply"),
        (system(cpu(pci("0:0", "gpu", width="wide"))), "line 3: <pci> has link_width='wide', expected a whole number"),
        (system(cpu(pci("0:0", "gpu", gpu(0, "ninety")))), "<gpu> has sm='ninety'"),
        (system(cpu(pci("0:0", "gpu", gpu(0, 90, '<c2c bw="-1"/>')))), "<c2c> has no bw above 0"),
        (system(cpu(pci("0:0", "gpu", gpu(0, 90) + net("a", "fast")) + net("a", "fast"))), "<net> has speed='fast'"),
        (system(cpu(pci("0:0", "gpu", gpu(0, 90, '<nvlink target="1" count="0"/>')))), "<nvlink> has count='0'"),
        (system(cpu(pci("0:0", "gpu") + pci("0:0", "gpu"))), "has the busid of an earlier GPU"),
        ("<graphs/>", "has no <graph> of pattern 4"),
        ('<graphs>\n<graph pattern="4" speedintra="0"/></graphs>', "line 2: <graph> has no channel"),
    ],
)
def test_what_is_refused_names_the_line(tmp_path, text, message):
    with pytest.raises(TopologyError, match=message) as caught:
        read(tmp_path, text)
    assert "\n" not in str(caught.value)


def graphs(nets=True, link="NVL"):
    net_element = '<net dev="0"/>' if nets else ""
    orders = ([f'<gpu dev="{dev}"/>' for dev in order] for order in ((0, 1, 2, 3), (3, 2, 1, 0)))
    channels = "".join(f"<channel>{net_element}{''.join(gpus)}</channel>" for gpus in orders)
    head = f'id="0" pattern="4" nchannels="2" speedintra="20" speedinter="12" typeintra="{link}" typeinter="PIX"'
    return f'<graphs version="1">\n<graph {head}>{channels}</graph>\n</graphs>'


@pytest.mark.parametrize(("link", "kind"), [("NVL", "nvswitch"), ("SYS", "pcie")])
def test_a_graph_file_is_a_star_of_what_its_ring_carries(tmp_path, link, kind):
    graph = read(tmp_path, graphs(link=link))
    assert len(ranks(graph)) == 4
    assert graph.edges["host0/gpu2", f"host0/{kind}"]["bandwidth"] == 2 * 20e9
    assert graph.edges["host0/nic0", "network"]["bandwidth"] == 2 * 12e9
    assert len(hosts(read(tmp_path, graphs(), nodes=2))) == 2
    with pytest.raises(TopologyError, match="on no network"):
        read(tmp_path, graphs(nets=False), nodes=2)
