"""What of a large topology is shown one by one: a server of each kind, and the switches above; the rest is stacked.

Servers are alike if they have the same nodes and the same links, of the same speed, to the same kinds of neighbours.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
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
    place: dict[Hashable, Hashable] = {}
    stacks: dict[Hashable, dict[str, object]] = {}
    note = _place_hosts(graph, place, stacks)
    _place_switches(graph, place, stacks)
    return Stacks(_quotient(graph, place, stacks), place, note)


def _place_hosts(
    graph: nx.DiGraph[Any], place: dict[Hashable, Hashable], stacks: dict[Hashable, dict[str, object]]
) -> str:
    """The first host of each kind in full, those like it as one stack; says so."""
    members, kinds = _members(graph), alike(graph)
    for first, *others in kinds[:_KINDS_OF_HOSTS]:
        _place_devices(graph, first, members[first], place, stacks)
        _stack_hosts(others, f"like {first}", members, place, stacks)
    unlike = [host for kind in kinds[_KINDS_OF_HOSTS:] for host in kind]
    _stack_hosts(unlike, "others", members, place, stacks)
    shown, count = min(len(kinds), _KINDS_OF_HOSTS), sum(map(len, kinds))
    return f"{shown:,} of {count:,} hosts in full, the others as stacks" if shown < count else "parts as stacks"


def _place_devices(
    graph: nx.DiGraph[Any],
    host: object,
    nodes: Sequence[Hashable],
    place: dict[Hashable, Hashable],
    stacks: dict[Hashable, dict[str, object]],
) -> None:
    """The nodes of one host; of a kind with very many the first ones."""
    kinds: dict[str, list[Hashable]] = {}
    for node in nodes:
        kinds.setdefault(str(graph.nodes[node]["kind"]), []).append(node)
    for kind, found in kinds.items():
        place.update((node, node) for node in found[:_PER_KIND])
        _stack(found[_PER_KIND:], {"kind": kind, "host": host}, kind, place, stacks)


def _stack_hosts(
    found: Sequence[object],
    about: str,
    members: dict[object, list[Hashable]],
    place: dict[Hashable, Hashable],
    stacks: dict[Hashable, dict[str, object]],
) -> None:
    if not found:
        return
    span = f"{found[0]} to {found[-1]}" if len(found) > 1 else f"{found[0]}"
    key = ("hosts", found[0])
    count = counted(len(found), "host")
    # Beside the NICs, on which the network hangs.
    stacks[key] = {"kind": "gpu", "layer": "nic", "host": span, "members": len(found), "label": count}
    stacks[key]["about"] = f"{count} {about}: {span}"
    place.update((node, key) for host in found for node in members[host])


def _place_switches(
    graph: nx.DiGraph[Any], place: dict[Hashable, Hashable], stacks: dict[Hashable, dict[str, object]]
) -> None:
    """Layer after layer, first those that what is below them and shown in full hangs on."""
    layers: dict[tuple[float, str], list[Hashable]] = {}
    for node, attributes in graph.nodes.items():
        if node not in place:
            layers.setdefault((float(attributes.get("level", 1)), str(attributes["kind"])), []).append(node)
    for (level, kind), nodes in sorted(layers.items()):
        near = [node for node in nodes if any(place.get(other) == other for other in graph.pred[node])]
        shown = (near or nodes)[:_SWITCHES]
        rest = [node for node in nodes if node not in set(shown)]
        shown, rest = (nodes, []) if len(rest) == 1 else (shown, rest)
        place.update((node, node) for node in shown)
        _stack(rest, {"kind": kind, "level": level}, "switch" if kind == "switch" else kind, place, stacks)


def _stack(
    nodes: Sequence[Hashable],
    attributes: dict[str, object],
    noun: str,
    place: dict[Hashable, Hashable],
    stacks: dict[Hashable, dict[str, object]],
) -> None:
    if nodes:
        key = (noun, nodes[0])
        about = f"{counted(len(nodes), noun)} more: {nodes[0]} to {nodes[-1]}"
        stacks[key] = {**attributes, "members": len(nodes), "label": f"{len(nodes):,} more", "about": about}
        place.update((node, key) for node in nodes)


def _quotient(
    graph: nx.DiGraph[Any], place: dict[Hashable, Hashable], stacks: dict[Hashable, dict[str, object]]
) -> nx.DiGraph[Any]:
    smaller: nx.DiGraph[Any] = nx.DiGraph(**graph.graph)
    for node in dict.fromkeys(_in_order(graph, place)):
        smaller.add_node(node, **(stacks[node] if node in stacks else graph.nodes[node]))
    for one, other, edge in graph.edges(data=True):
        ends = place[one], place[other]
        if ends[0] == ends[1]:
            continue
        if smaller.has_edge(*ends):
            smaller.edges[ends]["count"] += 1
        else:
            smaller.add_edge(*ends, **{**edge, "count": 1})
    return smaller


def _in_order(graph: nx.DiGraph[Any], place: dict[Hashable, Hashable]) -> Iterable[Hashable]:
    return (place[node] for node in graph)
