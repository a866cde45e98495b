"""Clusters of like servers: the graph for a GPU family, a number of nodes, and their NICs.

A server has GPUs, NICs, PCIe switches and sockets, and NVLinks between them. Nodes are called ``host0/gpu3``,
``host0/nic3``, ``host0/pcie3``, ``host0/cpu1``; an NVSwitch belongs to an NVLink domain, which is a part of a server, a
server, or many of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypedDict

from simcoll.errors import TopologyError
from simcoll.topology.graph import MAX_GPUS, Topology, connect, positive, whole
from simcoll.topology.hardware import NVLINK_LATENCY, PCIE_LATENCY, SOCKET_LINK, Fabric, Gpu, fabric_of, gpu_of


@dataclass(frozen=True, slots=True)
class Host:
    """The hardware of one server.

    ``nic_bandwidth`` is bytes/s of one NIC in each direction. ``sockets`` is the number of CPUs that the PCIe switches
    hang on; 0 leaves them out, where NVLink carries all that passes between the server's GPUs. ``pairs`` are NVLinks
    without a switch: two GPUs and the number of links between them.
    """

    gpu: Gpu
    gpus: int
    nics: int
    nic_bandwidth: float
    cpu: str
    sockets: int = 0
    pairs: tuple[tuple[int, int, int], ...] = ()


def add_host(graph: Topology, number: int, host: Host) -> None:
    """Add server ``number``; its GPUs are the next ranks."""
    name = f"host{number}"
    first = number * host.gpus
    for gpu in range(host.gpus):
        graph.add_node(f"{name}/gpu{gpu}", kind="gpu", rank=first + gpu, host=name, model=host.gpu.family)
    for socket in range(host.sockets):
        graph.add_node(f"{name}/cpu{socket}", kind="cpu", host=name)
        for other in range(socket):
            speed = SOCKET_LINK[host.cpu]
            connect(graph, f"{name}/cpu{other}", f"{name}/cpu{socket}", speed, PCIE_LATENCY, link="cpu")
    for group, members in enumerate(shared(host.gpus, host.nics)):
        _add_pcie(graph, name, group, host, *members)
    for one, other, links in host.pairs:
        bandwidth = links * host.gpu.nvlink
        connect(graph, f"{name}/gpu{one}", f"{name}/gpu{other}", bandwidth, 2 * NVLINK_LATENCY, link="nvlink")


def _add_pcie(graph: Topology, name: str, group: int, host: Host, gpus: list[int], nics: list[int]) -> None:
    """A PCIe switch with the GPUs and NICs below it, and the socket above it."""
    switch = f"{name}/pcie{group}"
    graph.add_node(switch, kind="pcie", host=name)
    speed = host.gpu.pcie_bandwidth(len(nics) * host.nic_bandwidth)
    for gpu in gpus:
        connect(graph, f"{name}/gpu{gpu}", switch, speed, PCIE_LATENCY, link="pcie")
    for nic in nics:
        graph.add_node(f"{name}/nic{nic}", kind="nic", host=name)
        lanes = host.gpu.pcie_bandwidth(host.nic_bandwidth)
        connect(graph, f"{name}/nic{nic}", switch, lanes, PCIE_LATENCY, link="pcie")
    if host.sockets:
        socket = gpus[0] * host.sockets // host.gpus
        connect(graph, switch, f"{name}/cpu{socket}", speed, PCIE_LATENCY, link="pcie")


def shared(gpus: int, nics: int) -> list[tuple[list[int], list[int]]]:
    """The GPUs and NICs that share a PCIe switch: each GPU with its NICs, or each NIC with its GPUs, in order."""
    groups = min(gpus, nics) or gpus
    members: list[tuple[list[int], list[int]]] = [([], []) for _ in range(groups)]
    for gpu in range(gpus):
        members[gpu * groups // gpus][0].append(gpu)
    for nic in range(nics):
        members[nic * groups // nics][1].append(nic)
    return members


def add_nvlink_domains(graph: Topology, host: Host, nodes: int, domain: int) -> None:
    """Join the GPUs of each NVLink domain of ``domain`` GPUs, in the order of their ranks, by one NVSwitch node.

    A domain is a part of a server, a server, or whole servers; raises TopologyError for a size that is none of them.
    """
    if domain % host.gpus and host.gpus % domain:
        raise TopologyError(
            f"nvlink_domain is {domain} with {host.gpus} GPUs per node, expected a divisor or a multiple of {host.gpus}"
        )
    gpus = nodes * host.gpus
    for number, first in enumerate(range(0, gpus, domain) if domain > 1 else ()):
        switch = _add_nvswitch(graph, host, number, domain)
        for rank in range(first, min(first + domain, gpus)):
            gpu = f"host{rank // host.gpus}/gpu{rank % host.gpus}"
            connect(graph, gpu, switch, host.gpu.nvlink_bandwidth, NVLINK_LATENCY, link="nvlink")


def _add_nvswitch(graph: Topology, host: Host, number: int, domain: int) -> str:
    """The switch of a domain: named after its server where it belongs to one."""
    features = {"sharp": True} if host.gpu.nvls else {}
    if domain > host.gpus:
        graph.add_node(f"domain{number}/nvswitch", kind="nvswitch", **features)
        return f"domain{number}/nvswitch"
    name, part = f"host{number * domain // host.gpus}", number % (host.gpus // domain)
    switch = f"{name}/nvswitch{part if domain < host.gpus else ''}"
    graph.add_node(switch, kind="nvswitch", host=name, **features)
    return switch


_GBPS = 1e9 / 8


class ClusterArguments(TypedDict, total=False):
    """The arguments of `cluster`, for functions that pass them on."""

    gpu: str
    nodes: int
    gpus_per_node: int | None
    nics_per_node: int | None
    nic_gbps: float
    fabric: str
    nvlink_domain: int | None


@dataclass(frozen=True, slots=True)
class Servers:
    """Like servers, their NVLink domains of ``domain`` GPUs, and the network that their NICs are meant for."""

    host: Host
    nodes: int
    domain: int
    fabric: Fabric
    name: str

    def nics(self) -> Iterator[tuple[int, int, str]]:
        """Every NIC as server, number in the server, node."""
        for node in range(self.nodes):
            for nic in range(self.host.nics):
                yield node, nic, f"host{node}/nic{nic}"


def cluster(
    *,
    gpu: str = "h100",
    nodes: int = 1,
    gpus_per_node: int | None = None,
    nics_per_node: int | None = None,
    nic_gbps: float = 400,
    fabric: str = "ib",
    nvlink_domain: int | None = None,
) -> Topology:
    """``nodes`` like servers on one ideal network: no link but those of the NICs is ever the bottleneck.

    ``gpus_per_node`` defaults to 8 (gb200, gb300: 4), ``nics_per_node`` to one per GPU; ``nic_gbps`` is Gbit/s of one
    NIC. ``nvlink_domain`` is the number of GPUs that NVLink joins: by default the node's, 72 for gb200 and gb300, 1 for
    a family without NVLink. Raises TopologyError, which names the argument. Sources: `simcoll.topology.hardware`.
    """
    return on_one_network(plan(gpu, nodes, gpus_per_node, nics_per_node, nic_gbps, fabric, nvlink_domain))


def plan(
    gpu: str = "h100",
    nodes: int = 1,
    gpus_per_node: int | None = None,
    nics_per_node: int | None = None,
    nic_gbps: float = 400,
    fabric: str = "ib",
    nvlink_domain: int | None = None,
) -> Servers:
    """The arguments of `cluster`, checked and with their defaults, before anything is built."""
    facts, network = gpu_of(gpu), fabric_of(fabric)
    gpus = facts.gpus_per_node if gpus_per_node is None else gpus_per_node
    nics = gpus if nics_per_node is None else nics_per_node
    whole("nodes", nodes)
    whole("gpus_per_node", gpus)
    whole("nics_per_node", nics, least=0)
    positive("nic_gbps", nic_gbps)
    domain = _domain(facts, gpus, nvlink_domain)
    _bounded(nodes, gpus, nics, domain)
    # Where NVLink joins all GPUs of a server nothing between them crosses a socket: the graph is smaller without.
    sockets = 0 if domain >= gpus else 2 if gpus > 1 else 1
    host = Host(facts, gpus, nics, nic_gbps * _GBPS, facts.cpu, sockets)
    return Servers(host, nodes, domain, network, f"{nodes} x {gpus} {facts.family}")


def _domain(facts: Gpu, gpus: int, given: int | None) -> int:
    """The default's smaller domain is that of the family on a server as large as the family's own."""
    if given is None:
        return facts.nvlink_domain if facts.nvlink_domain > facts.gpus_per_node else gpus if facts.nvlinks else 1
    whole("nvlink_domain", given)
    if given > 1 and not facts.nvlinks:
        raise TopologyError(f"nvlink_domain is {given}, but a {facts.family} has no NVLink; leave nvlink_domain out")
    return given


def _bounded(nodes: int, gpus: int, nics: int, domain: int) -> None:
    if nodes * max(gpus, nics) > MAX_GPUS:
        raise TopologyError(
            f"{nodes} nodes with {gpus} GPUs and {nics} NICs each, expected at most {MAX_GPUS:,} of either in all"
        )
    if nics == 0 and nodes * gpus > domain:
        raise TopologyError(f"nics_per_node is 0, but no NVLink domain holds all {nodes} nodes; give them NICs")


def build(servers: Servers) -> Topology:
    """The servers and their NVLink domains; the NICs are joined to nothing yet."""
    host = servers.host
    graph = Topology(name=servers.name, gpu=host.gpu.family, fabric=servers.fabric.name, cpu=host.cpu)
    for node in range(servers.nodes):
        add_host(graph, node, host)
    add_nvlink_domains(graph, host, servers.nodes, servers.domain)
    return graph


def on_one_network(servers: Servers) -> Topology:
    """The servers on one ideal switch, in place of a network that is never the bottleneck."""
    graph = build(servers)
    if servers.host.nics:
        graph.add_node("network", kind="switch", level=1)
    for _, _, nic in servers.nics():
        connect(graph, nic, "network", servers.host.nic_bandwidth, servers.fabric.latency, link="network")
    return graph
