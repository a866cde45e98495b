"""Reads the output of ``nvidia-smi topo -m`` as a graph: its matrix of connections, affinities and legend.

The matrix states the distance of two devices: NV# (that many NVLinks), PIX (one PCIe bridge), PXB (several), PHB (the
host bridge), NODE (one socket), SYS (across sockets). It states neither the GPU family nor the rate of a NIC: `Hints`
do, or the number of NVLinks. Equal pairs whose links add up to more than a GPU has are an NVSwitch, others direct
links.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from simcoll.errors import TopologyError
from simcoll.topology.graph import Topology, connect
from simcoll.topology.hardware import NVLINK_LATENCY, PCIE_LATENCY, SOCKET_LINK, Gpu, gpu_of, pcie_bandwidth
from simcoll.topology.import_hints import Hints, join_network, note, repeated

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_GPU = re.compile(r"GPU\d+")
_DEVICE = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
_CELL = re.compile(r"X|NV\d{1,2}|PIX|PXB|PHB|NODE|SYS|SOC")
_LEGEND = re.compile(r"(NIC\d+):\s*(\S+)")
_DISTANCE = {"PIX": 0, "PXB": 1, "PHB": 2, "NODE": 3, "SYS": 4, "SOC": 4}
_SAME_SWITCH, _SAME_TREE, _SAME_SOCKET = 0, 1, 3

_MOST_LINKS = 18
"""No GPU has more NVLinks (H100 to GB300)."""

_FAMILY_BY_LINKS = {6: "v100", 8: "a800", 12: "a100", 18: "h100"}
_DEFAULT_LINK = 20e9
_DEFAULT_GENERATION = 4
_MAX_DEVICES = 512


@dataclass(frozen=True, slots=True)
class Matrix:
    """The table: devices, the connection of each pair, each GPU's NUMA node, and the NICs' names."""

    devices: tuple[str, ...]
    cells: dict[tuple[str, str], str]
    numa: dict[str, str]
    names: dict[str, str]

    @property
    def gpus(self) -> tuple[str, ...]:
        """The GPUs among the devices, in their order."""
        return tuple(device for device in self.devices if _GPU.fullmatch(device))

    def links(self, one: str, other: str) -> int:
        """NVLinks between two devices."""
        cell = self.cells[one, other]
        return int(cell[2:]) if cell.startswith("NV") else 0

    def groups(self, devices: Iterable[str], distance: int) -> list[list[str]]:
        """The devices in groups within which each is at most so far from another."""
        groups: list[list[str]] = []
        for device in devices:
            near = [group for group in groups if any(self._near(device, member, distance) for member in group)]
            groups = [group for group in groups if group not in near]
            groups.append([*(member for group in near for member in group), device])
        return [sorted(group, key=self.devices.index) for group in groups]

    def _near(self, one: str, other: str, distance: int) -> bool:
        """By the matrix; where NVLink hides the PCIe way two GPUs of one NUMA node have the same socket."""
        cell = self.cells[one, other]
        if cell in _DISTANCE:
            return _DISTANCE[cell] <= distance
        return distance >= _SAME_SOCKET and self.numa.get(one) == self.numa.get(other)


def is_matrix(text: str) -> bool:
    """True if a text looks like the output of ``nvidia-smi topo -m``."""
    return any(_is_header(line) for line in _ANSI.sub("", text[:20_000]).splitlines())


def topology_of_matrix(name: str, text: str, hints: Hints | None = None) -> Topology:
    """The topology of one server by its matrix; raises TopologyError, which names the line."""
    hints = hints or Hints()
    matrix = parse_matrix(name, text)
    graph = Topology(name=f"{len(matrix.gpus)} GPUs")
    facts = _family(graph, matrix, hints)
    rates = _add_devices(graph, matrix, facts)
    _add_tree(graph, matrix, facts)
    _add_nvlinks(graph, matrix, facts)
    join_network(graph, rates, hints)
    return repeated(graph, hints.nodes)


def parse_matrix(name: str, text: str) -> Matrix:
    """The table in the text, whatever stands around it; raises TopologyError, which names the line."""
    lines = _ANSI.sub("", text).splitlines()
    top = next((number for number, line in enumerate(lines) if _is_header(line)), None)
    if top is None:
        raise TopologyError(f"{name}, line 1: no header with GPU0, expected the output of `nvidia-smi topo -m`")
    devices = _header(name, top + 1, lines[top])
    cells: dict[tuple[str, str], str] = {}
    numa: dict[str, str] = {}
    for number, line in enumerate(lines[top + 1 :], top + 2):
        words = line.split()
        if words[:1] and words[0] in devices:
            _read_row(f"{name}, line {number}", words, devices, cells)
            numa |= {words[0]: " ".join(words[len(devices) + 1 :])} if _GPU.fullmatch(words[0]) else {}
    _complete(f"{name}, line {top + 1}", devices, cells)
    names = {found.group(1): found.group(2) for line in lines[top:] if (found := _LEGEND.match(line.strip()))}
    return Matrix(devices, cells, {gpu: _numa_of(affinity) for gpu, affinity in numa.items()}, names)


def _is_header(line: str) -> bool:
    return line.split()[:1] != [] and _GPU.fullmatch(line.split()[0]) is not None and "X" not in line.split()


def _header(name: str, number: int, line: str) -> tuple[str, ...]:
    words = line.split()
    end = min(words.index(word) if word in words else len(words) for word in ("CPU", "NUMA"))
    devices = tuple(words[:end])
    odd = next((device for device in devices if not _DEVICE.fullmatch(device)), None)
    if odd is not None:
        raise TopologyError(f"{name}, line {number}: {ascii(odd)[:40]} is no name of a device, expected GPU0 or mlx5_0")
    if len(set(devices)) < len(devices) or len(devices) > _MAX_DEVICES:
        raise TopologyError(f"{name}, line {number}: a device twice, or too many; expected each of the devices once")
    return devices


def _read_row(place: str, words: list[str], devices: tuple[str, ...], cells: dict[tuple[str, str], str]) -> None:
    found = words[1 : len(devices) + 1]
    if len(found) < len(devices):
        raise TopologyError(f"{place}: {len(found)} connections of {words[0]}, expected {len(devices)}")
    for other, cell in zip(devices, found, strict=True):
        if not _CELL.fullmatch(cell) or (cell == "X") != (other == words[0]):
            raise TopologyError(
                f"{place}: {cell[:20]!r} between {words[0]} and {other}, expected "
                f"{'X' if other == words[0] else 'NV#, PIX, PXB, PHB, NODE or SYS'}"
            )
        if cells.get((other, words[0]), cell) != cell:
            raise TopologyError(
                f"{place}: {cell} from {words[0]} to {other}, but {cells[other, words[0]]} from {other} to {words[0]}; "
                "expected the same both ways"
            )
        cells[words[0], other] = cell


def _complete(place: str, devices: tuple[str, ...], cells: dict[tuple[str, str], str]) -> None:
    """Fill in missing rows of NICs: a GPU's cell for a NIC holds both ways, and NICs are far (SYS) from each other."""
    for one in devices:
        for other in devices:
            if (one, other) in cells:
                continue
            if _GPU.fullmatch(one):
                raise TopologyError(f"{place}: a column for {one} but no row, expected one")
            cells[one, other] = cells.get((other, one), "X" if one == other else "SYS")


def _numa_of(affinity: str) -> str:
    """The NUMA node behind the list of CPUs; the list itself where there is none."""
    words = affinity.split()
    return words[1] if len(words) > 1 and words[1] != "N/A" else affinity


def _family(graph: Topology, matrix: Matrix, hints: Hints) -> Gpu | None:
    """As the user says; otherwise the first family that has so many NVLinks."""
    facts = hints.facts()
    if facts is None:
        links = max(_links_of(matrix, gpu) for gpu in matrix.gpus)
        family = _FAMILY_BY_LINKS.get(links)
        facts = gpu_of(family) if family else None
        guess = f"{facts.family} are assumed for their {links} NVLinks" if facts else "PCIe Gen4 is assumed"
        note(graph, f"the matrix does not name the GPUs, and {guess}; give the family (gpu)")
    if facts:
        graph.graph.update(name=f"{len(matrix.gpus)} {facts.family}", gpu=facts.family, cpu=facts.cpu)
    return facts


def _is_switched(matrix: Matrix) -> bool:
    """All pairs have equally many NVLinks, in all more than a GPU has: the matrix shows each GPU's way to a switch."""
    gpus = matrix.gpus
    links = {matrix.links(one, other) for one in gpus for other in gpus if one != other}
    return len(links) == 1 and next(iter(links)) * (len(gpus) - 1) > _MOST_LINKS


def _links_of(matrix: Matrix, gpu: str) -> int:
    """NVLinks of a GPU."""
    found = [matrix.links(gpu, other) for other in matrix.gpus if other != gpu]
    return max(found, default=0) if _is_switched(matrix) else sum(found)


def _node(device: str) -> str:
    return f"host0/{device.lower().replace('/', '-')}"


def _add_devices(graph: Topology, matrix: Matrix, facts: Gpu | None) -> dict[str, float | None]:
    """The GPUs and NICs; the NICs with their rates, none of which the matrix states."""
    rates: dict[str, float | None] = {}
    for device in matrix.devices:
        if device in matrix.gpus:
            model = {"model": facts.family} if facts else {}
            graph.add_node(_node(device), kind="gpu", rank=matrix.gpus.index(device), host="host0", **model)
        else:
            graph.add_node(_node(device), kind="nic", host="host0", device=matrix.names.get(device, device))
            rates[_node(device)] = None
    return rates


def _add_tree(graph: Topology, matrix: Matrix, facts: Gpu | None) -> None:
    """Sockets, joined to each other, and below each the PCIe switches that the distances show."""
    speed = pcie_bandwidth(facts.pcie_generation if facts else _DEFAULT_GENERATION)
    for socket, members in enumerate(matrix.groups(matrix.devices, _SAME_SOCKET)):
        cpu = f"host0/cpu{socket}"
        graph.add_node(cpu, kind="cpu", host="host0")
        for other in range(socket):
            link = SOCKET_LINK[facts.cpu if facts else "amd"]
            connect(graph, f"host0/cpu{other}", cpu, link, PCIE_LATENCY, link="cpu")
        for tree in matrix.groups(members, _SAME_TREE):
            top = _below(graph, cpu, tree, speed)
            for group in matrix.groups(tree, _SAME_SWITCH):
                parent = top if group == tree else _below(graph, top, group, speed)
                for device in group:
                    connect(graph, _node(device), parent, speed, PCIE_LATENCY, link="pcie")


def _below(graph: Topology, parent: str, group: list[str], speed: float) -> str:
    """A PCIe switch below a node for the devices that share one; the node itself for a single device."""
    if len(group) == 1:
        return parent
    switch = f"host0/pcie{sum(kind == 'pcie' for kind in _kinds(graph))}"
    graph.add_node(switch, kind="pcie", host="host0")
    connect(graph, switch, parent, speed, PCIE_LATENCY, link="pcie")
    return switch


def _kinds(graph: Topology) -> list[object]:
    return [attributes["kind"] for attributes in graph.nodes.values()]


def _add_nvlinks(graph: Topology, matrix: Matrix, facts: Gpu | None) -> None:
    link = facts.nvlink if facts and facts.nvlinks else _DEFAULT_LINK
    if _is_switched(matrix):
        features = {"sharp": True} if facts and facts.nvls else {}
        graph.add_node("host0/nvswitch", kind="nvswitch", host="host0", **features)
        for gpu in matrix.gpus:
            bandwidth = _links_of(matrix, gpu) * link
            connect(graph, _node(gpu), "host0/nvswitch", bandwidth, NVLINK_LATENCY, link="nvlink")
        return
    for position, one in enumerate(matrix.gpus):
        for other in matrix.gpus[:position]:
            if links := matrix.links(one, other):
                connect(graph, _node(other), _node(one), links * link, 2 * NVLINK_LATENCY, link="nvlink")
