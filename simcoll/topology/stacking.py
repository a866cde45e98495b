"""What of a large topology is shown one by one: a server of each kind, and the switches above; the rest is stacked.

Servers are alike if they have the same nodes and the same links, of the same speed, to the same kinds of neighbours.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import networkx as nx

from simcoll.core.units import counted
from simcoll.topology.graph import hosts

_MOST_NODES = 130
"""A topology of so many nodes is shown in full."""

_KINDS_OF_HOSTS, _PER_KIND, _SWITCHES = 4, 32, 8


@dataclass(frozen=True, slots=True)
class Stacks:
    """A smaller graph, whose nodes stand for those of a topology: most for themselves, a stack for many.

    Stacks have attributes ``members`` (how many nodes, or hosts), ``label``, ``about`` and perhaps the ``layer`` in
    which they belong; edges have ``count``, and bandwidth and latency of one of them. ``place`` tells which node stands
    for each. ``note`` says what is stacked.
    """

    graph: nx.DiGraph[Any]
    place: dict[Hashable, Hashable]
    note: str


def alike(graph: nx.DiGraph[Any]) -> list[list[object]]:
    """The hosts of a topology, those that are alike together, in the order in which they stand in it."""
    members = _members(graph)
    found: dict[object, list[object]] = {}
    for host in hosts(graph):
        found.setdefault(_signature(graph, host, members[host]), []).append(host)
    return list(found.values())


def _members(graph: nx.DiGraph[Any]) -> dict[object, list[Hashable]]:
    members: dict[object, list[Hashable]] = {}
    for node, attributes in graph.nodes.items():
        members.setdefault(attributes.get("host", node), []).append(node)
    return members


def _signature(graph: nx.DiGraph[Any], host: object, nodes: Sequence[Hashable]) -> object:
    kinds = Counter(str(graph.nodes[node]["kind"]) for node in nodes)
    links = Counter(
        (
            str(graph.nodes[node]["kind"]),
            str(graph.nodes[other]["kind"]),
            graph.nodes[other].get("host", other) == host,
            float(edge["bandwidth"]),
            float(edge["latency"]),
        )
        for node in nodes
        for other, edge in graph[node].items()
    )
    return frozenset(kinds.items()), frozenset(links.items())


def stacked(graph: nx.DiGraph[Any]) -> Stacks:
    """The topology itself where it is small; else a server of each kind and, of each layer, the first switches."""
    if len(graph) <= _MOST_NODES:
        return Stacks(graph, {node: node for node in graph}, "")
    stacking = _Stacking(graph)
    note = stacking.place_hosts()
    stacking.place_switches()
    return Stacks(stacking.quotient(), stacking.place, note)


class _Stacking:
    """Which node stands for each of a graph, and the attributes of those that stand for many."""

    def __init__(self, graph: nx.DiGraph[Any]) -> None:
        self._graph, self._members = graph, _members(graph)
        self.place: dict[Hashable, Hashable] = {}
        self._stacks: dict[Hashable, dict[str, object]] = {}

    def place_hosts(self) -> str:
        """The first host of each kind in full, those like it as one stack; says so."""
        kinds = alike(self._graph)
        for first, *others in kinds[:_KINDS_OF_HOSTS]:
            self._place_devices(first)
            self._stack_hosts(others, f"like {first}")
        unlike = [host for kind in kinds[_KINDS_OF_HOSTS:] for host in kind]
        self._stack_hosts(unlike, "others")
        shown, count = min(len(kinds), _KINDS_OF_HOSTS), sum(map(len, kinds))
        return f"{shown:,} of {count:,} hosts in full, the others as stacks" if shown < count else "parts as stacks"

    def _place_devices(self, host: object) -> None:
        """The nodes of one host; of a kind with very many the first ones."""
        kinds: dict[str, list[Hashable]] = {}
        for node in self._members[host]:
            kinds.setdefault(str(self._graph.nodes[node]["kind"]), []).append(node)
        for kind, found in kinds.items():
            self.place.update((node, node) for node in found[:_PER_KIND])
            self._stack(found[_PER_KIND:], {"kind": kind, "host": host}, kind)

    def _stack_hosts(self, found: Sequence[object], about: str) -> None:
        if not found:
            return
        span = f"{found[0]} to {found[-1]}" if len(found) > 1 else f"{found[0]}"
        key = ("hosts", found[0])
        count = counted(len(found), "host")
        # Beside the NICs, on which the network hangs.
        self._stacks[key] = {"kind": "gpu", "layer": "nic", "host": span, "members": len(found), "label": count}
        self._stacks[key]["about"] = f"{count} {about}: {span}"
        self.place.update((node, key) for host in found for node in self._members[host])

    def place_switches(self) -> None:
        """Layer after layer, first those that what is below them and shown in full hangs on."""
        layers: dict[tuple[float, str], list[Hashable]] = {}
        for node, attributes in self._graph.nodes.items():
            if node not in self.place:
                layers.setdefault((float(attributes.get("level", 1)), str(attributes["kind"])), []).append(node)
        for (level, kind), nodes in sorted(layers.items()):
            near = [node for node in nodes if any(self.place.get(other) == other for other in self._graph.pred[node])]
            shown = (near or nodes)[:_SWITCHES]
            rest = [node for node in nodes if node not in set(shown)]
            shown, rest = (nodes, []) if len(rest) == 1 else (shown, rest)
            self.place.update((node, node) for node in shown)
            self._stack(rest, {"kind": kind, "level": level}, kind)

    def _stack(self, nodes: Sequence[Hashable], attributes: dict[str, object], noun: str) -> None:
        if nodes:
            key = (noun, nodes[0])
            about = f"{counted(len(nodes), noun)} more: {nodes[0]} to {nodes[-1]}"
            self._stacks[key] = {**attributes, "members": len(nodes), "label": f"{len(nodes):,} more", "about": about}
            self.place.update((node, key) for node in nodes)

    def quotient(self) -> nx.DiGraph[Any]:
        smaller: nx.DiGraph[Any] = nx.DiGraph(**self._graph.graph)
        for node in dict.fromkeys(self.place[node] for node in self._graph):
            smaller.add_node(node, **(self._stacks[node] if node in self._stacks else self._graph.nodes[node]))
        for one, other, edge in self._graph.edges(data=True):
            ends = self.place[one], self.place[other]
            if ends[0] == ends[1]:
                continue
            if smaller.has_edge(*ends):
                smaller.edges[ends]["count"] += 1
            else:
                smaller.add_edge(*ends, **{**edge, "count": 1})
        return smaller
