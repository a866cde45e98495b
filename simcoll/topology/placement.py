"""The places of a topology's ranks: shared domains, the links by which each leaves its domain, narrow networks.

A *domain* is NCCL's node: the GPUs of a server, or all those that NVLink joins. All of it follows from the wiring and
the attribute ``host``; it is computed once for a graph, in time linear in its nodes and edges.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Any

import networkx as nx
from networkx.utils import UnionFind

from simcoll.topology.graph import check, derived, link_kind, ranks

_INF = float("inf")


@dataclass(frozen=True, slots=True)
class Link:
    """A link as the closed form sees it: an edge, and the bytes/s that it carries in its direction."""

    source: Hashable
    target: Hashable
    kind: str
    bandwidth: float


@dataclass(frozen=True, slots=True)
class Cut:
    """The network below a level of its switches: the part that each rank is in, and bytes/s out of each part."""

    part: tuple[Hashable, ...]
    out: dict[Hashable, float]


@dataclass(frozen=True, slots=True)
class Placement:
    """The place of each rank in a topology, by rank: GPU node, domain, links out of it, and bytes/s up to these.

    Ranks of one ``island`` are joined both ways.
    """

    gpus: tuple[Hashable, ...]
    island: tuple[int, ...]
    domain: tuple[Hashable, ...]
    exits: tuple[tuple[Link, ...], ...]
    ways: tuple[float, ...]
    cuts: tuple[Cut, ...]


def placement_of(graph: nx.DiGraph[Any]) -> Placement:
    """The placement of a checked topology; raises TopologyError for a graph that is none."""
    return derived(graph, "placement", _placement)


def _placement(graph: nx.DiGraph[Any]) -> Placement:
    check(graph)
    gpus = ranks(graph)
    domains = _domains(graph)
    domain = tuple(domains[gpu] for gpu in gpus)
    leaving = _leaving(graph, domains)
    exits, ways = zip(*(_exits(graph, gpu, leaving) for gpu in gpus), strict=True)
    number = {node: place for place, island in enumerate(nx.strongly_connected_components(graph)) for node in island}
    island = tuple(number[gpu] for gpu in gpus)
    return Placement(gpus, island, domain, exits, ways, tuple(_cuts(graph, gpus)))


def kind_of(graph: nx.DiGraph[Any], node: Hashable) -> str:
    """Returns a node's kind, one of `simcoll.topology.graph.KINDS`."""
    kind: str = graph.nodes[node]["kind"]
    return kind


def _domains(graph: nx.DiGraph[Any]) -> UnionFind[Hashable]:
    """Returns the domains: nodes that are connected without the network are one, and so are the GPUs of one host."""
    sets: UnionFind[Hashable] = UnionFind()
    for one, other in graph.edges:
        if link_kind(graph, one, other) != "network":
            sets.union(one, other)
    first: dict[object, Hashable] = {}
    for gpu in ranks(graph):
        host = graph.nodes[gpu].get("host")
        if host is not None:
            sets.union(gpu, first.setdefault(host, gpu))
    return sets


def both_ways(graph: nx.DiGraph[Any], one: Hashable, other: Hashable) -> float:
    """Bytes/s that a link carries in either direction; its own where there is no way back."""
    there = graph.edges[one, other]["bandwidth"]
    back = graph.edges[other, one]["bandwidth"] if graph.has_edge(other, one) else there
    return float(min(there, back))


def _leaving(graph: nx.DiGraph[Any], domains: UnionFind[Hashable]) -> dict[Hashable, list[Link]]:
    """The links that leave a domain, by the node where they start."""
    found: dict[Hashable, list[Link]] = defaultdict(list)
    for one, other in graph.edges:
        if kind_of(graph, one) == "switch" or link_kind(graph, one, other) != "network":
            continue
        if domains[one] != domains[other]:
            bandwidth = min(both_ways(graph, one, other), _feed(graph, one))
            found[one].append(Link(one, other, "network", bandwidth))
    return found


def _feed(graph: nx.DiGraph[Any], node: Hashable) -> float:
    """Bytes/s that a NIC gets from its own server; a GPU that is its own NIC is not held back."""
    if kind_of(graph, node) != "nic":
        return float("inf")
    inside = [one for one in graph.predecessors(node) if link_kind(graph, one, node) != "network"]
    return sum(both_ways(graph, one, node) for one in inside) or float("inf")


def _exits(
    graph: nx.DiGraph[Any], gpu: Hashable, leaving: dict[Hashable, list[Link]]
) -> tuple[tuple[Link, ...], float]:
    """The links out of its domain that are nearest to a GPU, by hops over PCIe; over anything where there are none.

    And the bytes/s that the GPU gets to the nodes where they start.
    """
    for passing in (("pcie", "cpu", "nic"), ("pcie", "cpu", "nic", "nvswitch", "gpu")):
        first = _INF
        for hops, level in enumerate(_levels(graph, gpu, passing)):
            first = sum(level.values()) if hops == 1 else first
            links = [link for node in level for link in leaving.get(node, ())]
            if links:
                return tuple(links), min(first, sum(width for node, width in level.items() if node in leaving))
    return (), _INF


def _levels(graph: nx.DiGraph[Any], start: Hashable, passing: tuple[str, ...]) -> Iterator[dict[Hashable, float]]:
    """Breadth-first through nodes of those kinds and no network link: all nodes at 0 hops, at 1, and so on.

    With each the bytes/s of the widest of its shortest ways.
    """
    seen: set[Hashable] = {start}
    level = {start: _INF}
    while level:
        yield level
        reached: dict[Hashable, float] = {}
        for one, width in level.items():
            for other in graph.successors(one):
                if other in seen or kind_of(graph, other) not in passing:
                    continue
                if link_kind(graph, one, other) != "network":
                    reached[other] = max(reached.get(other, 0.0), min(width, both_ways(graph, one, other)))
        seen.update(reached)
        level = reached


def _cuts(graph: nx.DiGraph[Any], gpus: tuple[Hashable, ...]) -> Iterator[Cut]:
    """The connected parts below each level of switches but the lowest, and the bytes/s that leave each upwards."""
    level = {node: facts.get("level", 1) for node, facts in graph.nodes(data=True) if facts.get("kind") == "switch"}
    for lowest in sorted(set(level.values()))[1:]:
        sets: UnionFind[Hashable] = UnionFind()
        out = defaultdict[Hashable, float](float)
        upwards = []
        for one, other in graph.edges:
            if level.get(one, 0) < lowest and level.get(other, 0) < lowest:
                sets.union(one, other)
            elif level.get(one, 0) < lowest:
                upwards.append((one, other))
        for one, other in upwards:
            out[sets[one]] += both_ways(graph, one, other)
        part = tuple(sets[gpu] for gpu in gpus)
        if len(set(part)) > 1:
            yield Cut(part, dict(out))
