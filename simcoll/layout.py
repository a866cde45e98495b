"""Where the ranks of a group are: what a schedule needs to know of the topology to follow it."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import networkx as nx
import numpy as np

from simcoll.network import link_kind
from simcoll.paths import Integers
from simcoll.topology import TopologyError, ranks


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """A group's ranks, by their places 0 to ``size - 1`` in it.

    ``groups`` are the places of each host's ranks, or each NVLink domain's where that is larger. ``switches`` are, for
    each of these, the endpoints of the switches that reduce for all of its ranks (`schedule`); ``nodes`` are the
    graph's nodes of all endpoints, ranks first.
    """

    size: int
    groups: tuple[Integers, ...]
    switches: tuple[tuple[int, ...], ...]
    nodes: tuple[Hashable, ...]

    @property
    def width(self) -> int:
        """The ranks of the largest group: one channel for each, and for the NIC that is nearest to it."""
        return max(len(group) for group in self.groups)

    @property
    def square(self) -> bool:
        """Whether there are several groups of several ranks, all of one size."""
        return len(self.groups) > 1 and {len(group) for group in self.groups} == {self.width} and self.width > 1

    def orders(self) -> list[Integers]:
        """The ranks around each channel's ring.

        Hosts are contiguous. Channel k leaves every other host by its k-th GPU and comes in by the next one, and the
        hosts between run the other way round, so that a channel stays on its rail and all NICs are used alike.
        """
        if len(self.groups) == 1:
            return [self.groups[0]]
        return [
            np.concatenate([_turned(group, channel, host % 2 == 1) for host, group in enumerate(self.groups)])
            for channel in range(self.width)
        ]


def _turned(group: Integers, channel: int, back: bool) -> Integers:
    order = np.roll(group, -(channel + 1) % len(group))
    return order[::-1] if back else order


def layout(graph: nx.DiGraph[Any], chosen: Sequence[int] | None = None) -> Layout:
    """The group of the given ranks, or of all; raises TopologyError for ranks that the topology does not have."""
    members = _members(graph, chosen)
    place = {node: number for number, node in enumerate(members)}
    groups = _groups(graph, members)
    switches, nodes = [], list(members)
    for group in groups:
        found = _reducing(graph, group)
        switches.append(tuple(range(len(nodes), len(nodes) + len(found))))
        nodes.extend(found)
    places = tuple(np.array([place[node] for node in group], np.int64) for group in groups)
    return Layout(len(members), places, tuple(switches), tuple(nodes))


def _members(graph: nx.DiGraph[Any], chosen: Sequence[int] | None) -> tuple[Hashable, ...]:
    every = ranks(graph)
    if chosen is None:
        return every
    wrong = [rank for rank in chosen if not 0 <= rank < len(every)]
    if wrong or len(set(chosen)) != len(chosen) or not chosen:
        raise TopologyError(
            f"ranks are {list(chosen)[:16]}, expected at least one, each once, of the topology's 0 to {len(every) - 1}"
        )
    return tuple(every[rank] for rank in chosen)


def _groups(graph: nx.DiGraph[Any], members: Sequence[Hashable]) -> list[list[Hashable]]:
    """Ranks of one host, or joined by NVLink, in the order of the first rank of each."""
    joined: nx.Graph[Any] = nx.Graph()
    for node, data in graph.nodes(data=True):
        if data["kind"] == "gpu":
            joined.add_edge(("node", node), ("host", data.get("host", ("node", node))))
    for one, other, data in graph.edges(data=True):
        if link_kind(graph, one, other, data) == "nvlink":
            joined.add_edge(("node", one), ("node", other))
    domain = {end: number for number, part in enumerate(nx.connected_components(joined)) for end in part}
    found: dict[int, list[Hashable]] = {}
    for node in members:
        found.setdefault(domain[("node", node)], []).append(node)
    return list(found.values())


def _reducing(graph: nx.DiGraph[Any], group: Sequence[Hashable]) -> list[Hashable]:
    """The switches with the attribute ``sharp`` that are linked with every rank of the group, both ways."""
    first = group[0]
    near = [node for node in graph.successors(first) if graph.nodes[node].get("sharp")]
    return [node for node in near if all(graph.has_edge(rank, node) and graph.has_edge(node, rank) for rank in group)]
