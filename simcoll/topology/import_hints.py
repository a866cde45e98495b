"""Shared by the importers of one server's description: hints given beside the file, and the network outside."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from simcoll.errors import TopologyError
from simcoll.topology.graph import MAX_GPUS, Topology, connect, hosts, positive, whole
from simcoll.topology.hardware import Gpu, fabric_of, gpu_of


@dataclass(frozen=True, slots=True)
class Hints:
    """Facts that a file does not state: GPU family and number, Gbit/s of a NIC, the network, the number of servers."""

    gpu: str | None = None
    gpus_per_node: int | None = None
    nic_gbps: float | None = None
    fabric: str | None = None
    nodes: int | None = None

    def facts(self) -> Gpu | None:
        """The facts about the GPU family, where one is given."""
        return None if self.gpu is None else gpu_of(self.gpu)

    def nic_bandwidth(self) -> float | None:
        """Bytes/s of a NIC, where given."""
        if self.nic_gbps is None:
            return None
        positive("nic_gbps", self.nic_gbps)
        return self.nic_gbps * 1e9 / 8


def note(graph: Topology, text: str) -> None:
    """Remember an assumption; commands print it, and files keep it."""
    graph.graph.setdefault("notes", []).append(text)


def join_network(
    graph: Topology, rates: Mapping[str, float | None], hints: Hints, fabric_by_file: str | None = None
) -> None:
    """Join the NICs whose rate (bytes/s) is known, from the file or the hints, to one ideal switch."""
    fabric = fabric_of(hints.fabric or fabric_by_file or "ib")
    given = hints.nic_bandwidth()
    known = {nic: rate or given for nic, rate in rates.items()}
    if any(known.values()):
        graph.add_node("network", kind="switch", level=1)
        graph.graph["fabric"] = fabric.name
    for nic, rate in known.items():
        if rate:
            connect(graph, nic, "network", rate, fabric.latency, link="network")
    unknown = [nic for nic, rate in known.items() if not rate]
    if unknown:
        note(graph, f"the speed of {len(unknown)} of {len(known)} NICs is not known, and they are joined to no network")


def repeated(graph: Topology, nodes: int | None) -> Topology:
    """``nodes`` copies of a topology of one server, on the network of that one; raises TopologyError for another."""
    if nodes is None:
        return graph
    whole("nodes", nodes)
    servers = hosts(graph)
    if len(servers) == nodes or nodes == 1:
        return graph
    gpus = sum(map(len, servers.values()))
    if len(servers) != 1:
        raise TopologyError(f"nodes is {nodes}, but the topology has {len(servers)} servers already; leave nodes out")
    if nodes * gpus > MAX_GPUS:
        raise TopologyError(f"{nodes} servers with {gpus} GPUs each, expected at most {MAX_GPUS:,} GPUs in all")
    if not any(attributes.get("kind") == "switch" for attributes in graph.nodes.values()):
        raise TopologyError(
            f"nodes is {nodes}, but the server is on no network: it has no NIC, or none of known speed (nic_gbps)"
        )
    return _copies(graph, nodes, gpus)


def _copies(graph: Topology, nodes: int, gpus: int) -> Topology:
    """Every node but the network's switches is in each copy, under the name of its server."""
    result = Topology(**{**graph.graph, "name": f"{nodes} x {graph.graph.get('name', 'server')}"})
    for number in range(nodes):
        for node, attributes in graph.nodes.items():
            own = {"host": f"host{number}"} if "host" in attributes else {}
            own |= {"rank": attributes["rank"] + number * gpus} if "rank" in attributes else {}
            result.add_node(_renamed(graph, node, number), **{**attributes, **own})
        for one, other, attributes in graph.edges(data=True):
            result.add_edge(_renamed(graph, one, number), _renamed(graph, other, number), **attributes)
    return result


def _renamed(graph: Topology, node: Hashable, number: int) -> Hashable:
    attributes = graph.nodes[node]
    if attributes["kind"] == "switch":
        return node
    server = f"{attributes.get('host')}/"
    return f"host{number}/{str(node).removeprefix(server)}"
