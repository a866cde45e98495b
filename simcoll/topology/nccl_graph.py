"""NCCL's graph XML (``NCCL_GRAPH_DUMP_FILE``) as a graph: not the machine, but what NCCL's search found it good for.

A ring's channels, times the speed that the search gave each, is what every GPU can send at once (2.30.7,
``src/graph/search.cc``): the graph is a star of that bandwidth around one node, with the NICs around the network.
"""

from __future__ import annotations

from simcoll.topology.graph import Topology, connect
from simcoll.topology.hardware import NVLINK_LATENCY, PCIE_LATENCY
from simcoll.topology.import_hints import Hints, join_network, note, repeated
from simcoll.topology.xml import Element

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
    """Each NIC beside the GPU that its channels begin with; the channels through it share what it carries."""
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
