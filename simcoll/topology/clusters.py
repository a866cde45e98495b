"""Clusters of like servers: the graph for a GPU family, a number of nodes, and their NICs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypedDict

from simcoll.errors import TopologyError
from simcoll.topology.graph import MAX_GPUS, Topology, connect, positive, whole
from simcoll.topology.hardware import Fabric, Gpu, fabric_of, gpu_of
from simcoll.topology.server import Host, add_host, add_nvlink_domains

_GBPS = 1e9 / 8


class ClusterArguments(TypedDict, total=False):
    """What `cluster` takes, for those who pass it on."""

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
