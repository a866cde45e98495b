"""Imports NCCL's XML as graphs: topologies (``NCCL_TOPO_DUMP_FILE``, clouds' files), graphs (``NCCL_GRAPH_DUMP_FILE``).

A topology's links have the bandwidths that NCCL assumes (2.30.7, ``src/graph/topo.h`` and ``topo.cc``). A cloud's file
is *pre-fused*: it has the PCI tree alone, and NCCL adds GPUs, NVLinks and NICs at run time. Here their kinds come from
PCI class codes, and families and speeds from device numbers (source: the PCI ID repository, pci.ids) or from `Hints`;
what remains unknown is noted and left out.

The graph XML does not describe the machine, but the result of NCCL's search on it. A ring's channels, times the speed
that the search gave each, is the rate at which every GPU can send at once (2.30.7, ``src/graph/search.cc``): the graph
is a star of that bandwidth around one node, with the NICs around the network.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from simcoll.errors import TopologyError
from simcoll.topology.graph import Topology, connect
from simcoll.topology.hardware import NVLINK_LATENCY, PCIE_LATENCY, Gpu, gpu_of, pcie_bandwidth
from simcoll.topology.import_hints import Hints, join_network, note, repeated
from simcoll.topology.presets import CUBE_MESH
from simcoll.topology.xml import Element

_NVIDIA = 0x10DE
_AWS = 0x1D0F

_SXM = {
    0x1DB1: "v100", 0x1DB5: "v100", 0x1DB8: "v100",
    0x20B0: "a100", 0x20B2: "a100", 0x20BD: "a800", 0x20F3: "a800",
    0x2330: "h100", 0x2324: "h800", 0x2329: "h20", 0x232C: "h20", 0x2335: "h200",
    0x2901: "b200", 0x3182: "b300", 0x2941: "gb200", 0x31C2: "gb300",
}  # fmt: skip
"""GPUs whose boards have NVSwitches (V100: a mesh)."""

_PCIE = {
    0x1DB4: "v100", 0x1DB6: "v100", 0x1EB8: "t4", 0x20B5: "a100", 0x20F1: "a100", 0x20F5: "a800", 0x2236: "a10",
    0x2237: "a10g", 0x26B9: "l40s", 0x27B8: "l4", 0x2684: "rtx4090", 0x2331: "h100", 0x2322: "h800", 0x233B: "h200",
}  # fmt: skip

_NIC_GBPS = {
    (0x15B3, 0x1013): 100, (0x15B3, 0x1017): 100, (0x15B3, 0x1019): 100, (0x15B3, 0x101B): 200, (0x15B3, 0x101D): 100,
    (0x15B3, 0x1021): 400, (0x15B3, 0x1023): 800, (0x15B3, 0xA2D6): 200, (0x15B3, 0xA2DC): 400,
    (0x1D0F, 0xEFA0): 100, (0x1D0F, 0xEFA1): 100, (0x1D0F, 0xEFA2): 200, (0x1D0F, 0xEFA3): 400,
}  # fmt: skip
"""Gbit/s: ConnectX-4 to ConnectX-8, BlueField-2 and -3; AWS's EFA of p4d, p5, p5en and p6 (EC2 documentation)."""

_BY_CAPABILITY = {70: "v100", 75: "t4", 80: "a100", 86: "a10", 89: "l40s", 90: "h100", 100: "b200", 103: "b300"}

KINDS = {"0x03": "gpu", "0x02": "nic", "0x0604": "switch", "0x0680": "nvswitch"}
"""The kind of a device by the beginning of its class code."""


@dataclass(frozen=True, slots=True)
class Board:
    """A GPU's family, and whether its kind of board is one on which NVLink joins all GPUs."""

    family: str
    linked: bool


def board_of(vendor: int, device: int) -> Board | None:
    """Returns the board that has an NVIDIA device number; None where it is not known."""
    family = _SXM.get(device) or _PCIE.get(device)
    return Board(family, device in _SXM) if vendor == _NVIDIA and family else None


def family_of(capability: int, cpu: str | None) -> str | None:
    """The family that a compute capability most likely means; Blackwell beside an ARM CPU is a Grace Blackwell."""
    family = _BY_CAPABILITY.get(capability)
    return f"g{family}" if family in ("b200", "b300") and cpu == "arm" else family


def nic_bandwidth(vendor: int, device: int) -> float | None:
    """Bytes/s in each direction of a NIC by its identifiers; None where they are not known."""
    gbps = _NIC_GBPS.get((vendor, device))
    return gbps * 1e9 / 8 if gbps else None


def kind_of(class_code: str) -> str | None:
    """``gpu``, ``nic``, ``switch`` or ``nvswitch`` by a class code such as ``0x030200``; None for anything else."""
    return next((kind for start, kind in KINDS.items() if class_code.lower().startswith(start)), None)


def fabric_by(vendor: int, class_code: str) -> str | None:
    """The network that a NIC is made for: AWS's is EFA, InfiniBand and Ethernet by class; None where not known."""
    if vendor == _AWS:
        return "efa"
    return {"0x0207": "ib", "0x0200": "roce"}.get(class_code.lower()[:6])


_RING = 4
"""NCCL_TOPO_PATTERN_RING."""


def topology_of_graphs(root: Element, hints: Hints) -> Topology:
    """The star that a graph file stands for; raises TopologyError, which names the line."""
    ring = next((graph for graph in root.all("graph") if graph.whole("pattern", 0) == _RING), None)
    if ring is None:
        raise root.error(f"has no <graph> of pattern {_RING}, expected NCCL's ring among its graphs")
    channels = [channel for channel in ring.all("channel") if any(channel.all("gpu"))]
    speed = ring.number("speedintra", 0) * len(channels)
    if not channels or speed <= 0:
        raise ring.error("has no channel with GPUs, or no speedintra above 0 (GB/s)")
    topology = _star(ring, [gpu.whole("dev", 0) for gpu in channels[0].all("gpu")], speed * 1e9, hints)
    _add_nics(topology, ring, channels, hints)
    note(topology, "a graph file holds NCCL's channels and not the machine; a topology file says more")
    return repeated(topology, hints.nodes)


def _star(ring: Element, devices: list[int], bandwidth: float, hints: Hints) -> Topology:
    if len(set(devices)) < len(devices):
        raise ring.error("has a channel with a GPU twice, expected each once")
    over_nvlink = ring.attributes.get("typeintra", "").startswith("NV")
    kind, link, latency = ("nvswitch", "nvlink", NVLINK_LATENCY) if over_nvlink else ("pcie", "pcie", PCIE_LATENCY)
    facts = hints.facts()
    graph = Topology(name=f"{len(devices)} {facts.family if facts else 'GPUs'}")
    graph.graph.update({"gpu": facts.family, "cpu": facts.cpu} if facts else {})
    hub = f"host0/{kind}"
    graph.add_node(hub, kind=kind, host="host0")
    for rank, device in enumerate(sorted(devices)):
        model = {"model": facts.family} if facts else {}
        graph.add_node(f"host0/gpu{device}", kind="gpu", rank=rank, host="host0", **model)
        connect(graph, f"host0/gpu{device}", hub, bandwidth, latency, link=link)
    return graph


def _add_nics(graph: Topology, ring: Element, channels: list[Element], hints: Hints) -> None:
    """Each NIC beside the GPU that its channels begin with; the channels through it share its bandwidth."""
    rates: dict[str, float | None] = {}
    for channel in channels:
        nets, gpus = list(channel.all("net")), list(channel.all("gpu"))
        if not nets:
            continue
        nic = f"host0/nic{nets[0].whole('dev', 0)}"
        rates[nic] = (rates.get(nic) or 0.0) + ring.number("speedinter", 0) * 1e9
        graph.add_node(nic, kind="nic", host="host0")
        bandwidth = max(rates[nic] or 0.0, 1.0)
        connect(graph, f"host0/gpu{gpus[0].whole('dev', 0)}", nic, bandwidth, PCIE_LATENCY, link="pcie")
    if rates:
        join_network(graph, rates, hints)


_NVLINK_BY_CAPABILITY = ((100, 40.1e9), (90, 20.6e9), (86, 12e9), (80, 20e9), (70, 20e9), (0, 18e9))
"""Bytes/s of one NVLink from this compute capability on: NCCL's SM60_NVLINK_BW to SM100_NVLINK_BW."""

_LOCAL = 5000e9
"""NCCL's LOC_BW: a NIC that hangs on no PCI device."""

_NET_DEFAULT_MBPS = 10_000
"""NCCL's speed (Mbit/s) of a NIC that states none (``topo.cc``)."""

_CPU_OF = {"GenuineIntel": "intel", "AuthenticAMD": "amd"}
_INTEL_SOCKETS = ((0xCF, 40e9), (0x8F, 22e9), (0x55, 10e9), (0, 6e9))
"""Bytes/s between Intel sockets from this model number on: ERP, SRP, SKL and BDW_QPI_BW."""

_GENERATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*GT/s", re.IGNORECASE)
_GENERATIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}


@dataclass(slots=True)
class _Device:
    """A GPU while the tree is read: its node, element, compute capability (0: unknown) and kind of board."""

    node: str
    element: Element
    capability: int
    board: Board | None
    cpu: str


@dataclass(slots=True)
class _Machine:
    """The parts of the machine that have been found so far."""

    graph: Topology
    hints: Hints
    gpus: dict[str, _Device] = field(default_factory=dict)
    rates: dict[str, float | None] = field(default_factory=dict)
    nics: dict[tuple[str, str], str] = field(default_factory=dict)
    sockets: dict[str, dict[str, Element]] = field(default_factory=dict)
    unknown: list[tuple[Element, str, str]] = field(default_factory=list)
    fabric: str | None = None
    hosts: dict[str, str] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    def name(self, host: str, kind: str) -> str:
        """The next node of a kind on a server: ``host0/pcie2``."""
        number = self.counts.get(f"{host}/{kind}", 0)
        self.counts[f"{host}/{kind}"] = number + 1
        return f"{host}/{kind}{number}"


def topology_of_system(root: Element, hints: Hints) -> Topology:
    """The topology that an NCCL topology XML describes; raises TopologyError, which names the line."""
    if root.tag != "system":
        raise root.error("is the outermost element, expected <system>, as NCCL_TOPO_DUMP_FILE writes it")
    machine = _Machine(Topology(), hints)
    for cpu in root.all("cpu"):
        _read_cpu(machine, cpu)
    _take_unknown(machine)
    if not machine.gpus:
        raise _no_gpus(root, machine)
    _join_sockets(machine)
    _number_gpus(machine)
    _join_nvlinks(machine)
    _name_graph(machine)
    join_network(machine.graph, machine.rates, machine.hints, machine.fabric)
    return repeated(machine.graph, machine.hints.nodes)


def _take_unknown(machine: _Machine) -> None:
    """Devices without a class are GPUs, and then NICs, where the file has no others and the user says how many."""
    count = machine.hints.gpus_per_node
    if machine.gpus or count is None:
        return
    for position, (pci, parent, cpu) in enumerate(machine.unknown):
        if position < count:
            _add_gpu(machine, pci, pci, parent, cpu)
        else:
            _add_nic(machine, parent, _pci_bandwidth(pci), None, pci.attributes.get("busid", ""))


def _no_gpus(root: Element, machine: _Machine) -> TopologyError:
    advice = "let NCCL write NCCL_TOPO_DUMP_FILE on that machine, and import that file"
    if machine.unknown:
        device = machine.unknown[0][0]
        return device.error(
            f"has no class, and neither <gpu> nor <nic> in it: it may be a GPU or a NIC; say how many of the "
            f"{len(machine.unknown)} such devices are GPUs (gpus_per_node, they come first), or {advice}"
        )
    return root.error(f"has no GPU in it, expected <gpu> or a PCI device of class 0x03; {advice}")


def _read_cpu(machine: _Machine, cpu: Element) -> None:
    host = machine.hosts.setdefault(cpu.attributes.get("host_hash", ""), f"host{len(machine.hosts)}")
    node = machine.name(host, "cpu")
    machine.graph.add_node(node, kind="cpu", host=host)
    machine.sockets.setdefault(host, {})[node] = cpu
    for child in cpu.children:
        if child.tag == "pci":
            _read_pci(machine, child, node, node)
        elif child.tag == "nic":
            _read_nets(machine, child, node, _LOCAL)


def _read_pci(machine: _Machine, pci: Element, parent: str, cpu: str) -> None:
    """A PCI device and all below it; ``parent`` is the node that it hangs on, ``cpu`` its socket."""
    kind, speed = kind_of(pci.attributes.get("class", "")), _pci_bandwidth(pci)
    gpus, nics, below = (list(pci.all(tag)) for tag in ("gpu", "nic", "pci"))
    if gpus or (kind == "gpu" and not below):
        for gpu in gpus or [pci]:
            _add_gpu(machine, pci, gpu, parent, cpu)
    elif nics:
        machine.fabric = fabric_by(pci.whole("vendor", 0), pci.attributes.get("class", ""))
        for nic in nics:
            _read_nets(machine, nic, parent, speed)
    elif below:
        node = _add_switch(machine, parent, speed)
        for child in below:
            _read_pci(machine, child, node, cpu)
    elif kind == "nic":
        vendor, device = pci.whole("vendor", 0), pci.whole("device", 0)
        machine.fabric = fabric_by(vendor, pci.attributes["class"])
        _add_nic(machine, parent, speed, nic_bandwidth(vendor, device), pci.attributes.get("busid", ""))
    elif kind is None and "class" not in pci.attributes:
        machine.unknown.append((pci, parent, cpu))


def _pci_bandwidth(pci: Element) -> float:
    """As NCCL reads it: no width is sixteen lanes, no or an unknown speed is Gen3."""
    lanes = pci.whole("link_width", 16) or 16
    found = _GENERATION.match(pci.attributes.get("link_speed", ""))
    generation = _GENERATIONS.get(float(found.group(1)), 3) if found else 3
    return pcie_bandwidth(generation, min(lanes, 32))


def _add_switch(machine: _Machine, parent: str, speed: float) -> str:
    host = str(machine.graph.nodes[parent]["host"])
    node = machine.name(host, "pcie")
    machine.graph.add_node(node, kind="pcie", host=host)
    connect(machine.graph, node, parent, speed, PCIE_LATENCY, link="pcie")
    return node


def _add_gpu(machine: _Machine, pci: Element, gpu: Element, parent: str, cpu: str) -> None:
    host = str(machine.graph.nodes[parent]["host"])
    node = machine.name(host, "gpu")
    machine.graph.add_node(node, kind="gpu", host=host)
    connect(machine.graph, node, parent, _pci_bandwidth(pci), PCIE_LATENCY, link="pcie")
    bus = f"{host}/{pci.attributes.get('busid', '').lower()}"
    if bus in machine.gpus and gpu is pci:
        raise pci.error(f"has the busid of an earlier GPU, {bus!r}, expected one of its own")
    board = board_of(pci.whole("vendor", 0), pci.whole("device", 0))
    machine.gpus[bus if bus not in machine.gpus else f"{bus}+{node}"] = _Device(
        node, gpu, gpu.whole("sm", 0), board, cpu
    )
    for c2c in gpu.all("c2c"):
        bandwidth = c2c.number("bw", 0) * c2c.whole("count", 1) * 1e6
        if bandwidth <= 0:
            raise c2c.error("has no bw above 0, expected MB/s of one link")
        connect(machine.graph, node, cpu, bandwidth, NVLINK_LATENCY, link="c2c")


def _read_nets(machine: _Machine, nic: Element, parent: str, speed: float) -> None:
    """The ports of a NIC; several share its PCIe link."""
    nets = list(nic.all("net"))
    if len(nets) > 1 and speed < _LOCAL:
        parent = _add_switch(machine, parent, speed)
    for net in nets:
        mbps = net.number("speed", _NET_DEFAULT_MBPS)
        rate = (mbps if mbps > 0 else _NET_DEFAULT_MBPS) * 1e6 / 8
        _add_nic(machine, parent, speed, rate, net.attributes.get("name") or net.attributes.get("dev", ""))


def _add_nic(machine: _Machine, parent: str, speed: float, rate: float | None, device: str) -> None:
    """A NIC; one that is named twice, as sockets are below every CPU, is one NIC that both reach."""
    host = str(machine.graph.nodes[parent]["host"])
    node = machine.nics.get((host, device)) if device else None
    if node is None:
        node = machine.name(host, "nic")
        machine.graph.add_node(node, kind="nic", host=host, **({"device": device} if device else {}))
        machine.nics[host, device] = node
        machine.rates[node] = rate
    connect(machine.graph, node, parent, speed, PCIE_LATENCY, link="pcie")


def _join_sockets(machine: _Machine) -> None:
    """Every two sockets of a server."""
    for sockets in machine.sockets.values():
        nodes = list(sockets)
        for position, one in enumerate(nodes):
            for other in nodes[:position]:
                connect(machine.graph, other, one, _socket_bandwidth(sockets[one]), PCIE_LATENCY, link="cpu")


def _socket_bandwidth(cpu: Element) -> float:
    vendor = _cpu_of(cpu)
    if vendor == "intel":
        model = max(cpu.number("modelid", 0), 0)
        return next(bandwidth for start, bandwidth in _INTEL_SOCKETS if model >= start)
    return 16e9 if vendor == "amd" else 32e9 if cpu.attributes.get("arch") == "ppc64" else 6e9


def _cpu_of(cpu: Element) -> str | None:
    if cpu.attributes.get("arch", "").startswith(("arm", "aarch")):
        return "arm"
    return _CPU_OF.get(cpu.attributes.get("vendor", ""))


def _number_gpus(machine: _Machine) -> None:
    """Ranks as the dump gives them, or in the order of the file where it gives none or a rank twice."""
    devices = list(machine.gpus.values())
    given = [int(device.element.number("rank", -1)) for device in devices]
    if min(given) >= 0 and len(set(given)) == len(given):
        devices = [device for _, device in sorted(zip(given, devices, strict=True), key=lambda pair: pair[0])]
    for rank, device in enumerate(devices):
        machine.graph.nodes[device.node]["rank"] = rank


def _join_nvlinks(machine: _Machine) -> None:
    """The NVLinks that the file states; where it is pre-fused, those of the family's usual board."""
    stated = False
    for bus, device in machine.gpus.items():
        for nvlink in device.element.all("nvlink"):
            stated = True
            _add_nvlink(machine, bus, device, nvlink)
    fused = any(device.element.tag == "gpu" for device in machine.gpus.values())
    if not stated and not fused:
        _usual_nvlinks(machine)


def _add_nvlink(machine: _Machine, bus: str, device: _Device, nvlink: Element) -> None:
    """To a GPU of this file, to a CPU (POWER9), or to an NVSwitch, all of which are one node here as in NCCL."""
    target = f"{bus.partition('/')[0]}/{nvlink.attributes.get('target', '').lower()}"
    bandwidth = nvlink.whole("count", 1) * _nvlink_bandwidth(machine, device)
    peer = machine.gpus.get(target)
    if peer is device:
        note(machine.graph, f"line {nvlink.line}: an NVLink of {device.node} to itself is left out")
    elif bandwidth <= 0:
        raise nvlink.error(f"has count={nvlink.attributes.get('count')!r}, expected at least 1")
    elif peer is not None:
        _add_one_way(machine.graph, device.node, peer.node, bandwidth)
        if not _lists(peer, bus):
            _add_one_way(machine.graph, peer.node, device.node, bandwidth)
    else:
        other = device.cpu if nvlink.attributes.get("tclass") == "0x068001" else _nvswitch(machine, device)
        _add_one_way(machine.graph, device.node, other, bandwidth)
        _add_one_way(machine.graph, other, device.node, bandwidth)


def _lists(peer: _Device, bus: str) -> bool:
    """True if the other end states this link too."""
    own = bus.partition("/")[2]
    return any(nvlink.attributes.get("target", "").lower() == own for nvlink in peer.element.all("nvlink"))


def _add_one_way(graph: Topology, one: str, other: str, bandwidth: float) -> None:
    """Links between the same two nodes are one edge with the sum of their bandwidths."""
    before = graph.edges[one, other]["bandwidth"] if graph.has_edge(one, other) else 0.0
    latency = NVLINK_LATENCY * (2 if graph.nodes[other]["kind"] == graph.nodes[one]["kind"] else 1)
    graph.add_edge(one, other, bandwidth=before + bandwidth, latency=latency, link="nvlink")


def _nvlink_bandwidth(machine: _Machine, device: _Device) -> float:
    facts = _facts(machine, device)
    if facts is not None and facts.nvlinks:
        return facts.nvlink
    return next(bandwidth for start, bandwidth in _NVLINK_BY_CAPABILITY if device.capability >= start)


def _nvswitch(machine: _Machine, device: _Device) -> str:
    """One switch for all: of the server, or of the domain where the dump has several servers."""
    several = len(machine.hosts) > 1
    host = str(machine.graph.nodes[device.node]["host"])
    node = "domain0/nvswitch" if several else f"{host}/nvswitch"
    if node not in machine.graph:
        facts = _facts(machine, device)
        sharp = device.capability >= 90 or (facts is not None and facts.nvls)
        machine.graph.add_node(
            node, kind="nvswitch", **({} if several else {"host": host}), **({"sharp": True} if sharp else {})
        )
    return node


def _usual_nvlinks(machine: _Machine) -> None:
    """NVSwitches, or the cube mesh of eight V100, where the family is known and has such boards."""
    devices = list(machine.gpus.values())
    facts = _facts(machine, devices[0])
    linked = machine.hints.gpu is not None or (devices[0].board is not None and devices[0].board.linked)
    if facts is None:
        note(machine.graph, "the file names neither GPU families nor NVLinks; give the family (gpu)")
    elif linked and facts.nvlinks and len(devices) > 1:
        if (facts.family, len(devices)) == ("v100", 8):
            for one, other, links in CUBE_MESH:
                bandwidth = links * facts.nvlink
                _add_one_way(machine.graph, devices[one].node, devices[other].node, bandwidth)
                _add_one_way(machine.graph, devices[other].node, devices[one].node, bandwidth)
        else:
            for device in devices:
                switch = _nvswitch(machine, device)
                _add_one_way(machine.graph, device.node, switch, facts.nvlink_bandwidth)
                _add_one_way(machine.graph, switch, device.node, facts.nvlink_bandwidth)
        note(
            machine.graph, f"the file states no NVLinks; those of a server with {len(devices)} {facts.family} are added"
        )


def _facts(machine: _Machine, device: _Device) -> Gpu | None:
    """By what the user says, by the device number, or by the compute capability."""
    if machine.hints.gpu is not None:
        return machine.hints.facts()
    if device.board is not None:
        return gpu_of(device.board.family)
    socket = machine.sockets[str(machine.graph.nodes[device.node]["host"])][device.cpu]
    family = family_of(device.capability, _cpu_of(socket))
    return None if family is None else gpu_of(family)


def _name_graph(machine: _Machine) -> None:
    """Families of the GPUs, and of the graph where they are all alike; its CPU."""
    families = set()
    for device in machine.gpus.values():
        facts = _facts(machine, device)
        families.add(facts.family if facts else None)
        if facts:
            machine.graph.nodes[device.node]["model"] = facts.family
    family = families.pop() if len(families) == 1 else None
    first = next(iter(next(iter(machine.sockets.values())).values()))
    named = {"gpu": family, "cpu": _cpu_of(first)}
    machine.graph.graph.update(name=f"{len(machine.gpus)} {family or 'GPUs'}")
    machine.graph.graph.update({key: value for key, value in named.items() if value})
