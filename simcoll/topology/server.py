"""One server as a part of a topology: its GPUs, NICs, PCIe switches and sockets, and the NVLinks between them.

Nodes are called ``host0/gpu3``, ``host0/nic3``, ``host0/pcie3``, ``host0/cpu1``; an NVSwitch belongs to an NVLink
domain, which is a part of a server, a server, or many of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from simcoll.errors import TopologyError
from simcoll.topology.graph import Topology, connect
from simcoll.topology.hardware import NVLINK_LATENCY, PCIE_LATENCY, SOCKET_LINK, Gpu


@dataclass(frozen=True, slots=True)
class Host:
    """What one server is made of.

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
    """Which GPUs and which NICs share a PCIe switch: each GPU with its NICs, or each NIC with its GPUs, in order."""
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
