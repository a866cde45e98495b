"""The arrangement of a group's ranks in hosts and domains, as schedules need it.

:func:`mesh_rings` finds rings through GPUs that are joined by NVLinks without a switch (the cube mesh of V100 and
MI-style boxes).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations
from typing import Any

import networkx as nx
import numpy as np

from simcoll.errors import TopologyError
from simcoll.estimator.flow.paths import Floats, Integers
from simcoll.topology.graph import link_kind, ranks

LARGEST = 8
"""Up to so many GPUs all rings are tried: 5,040."""

_ORDERS = 100


def mesh_rings(bandwidth: Floats) -> tuple[Integers, ...]:
    """Rings that together use the links' bandwidth, each as fast as the slowest link; none without such rings.

    ``bandwidth[i, j]`` is bytes/s from GPU i to GPU j, 0 where there is no link. One ring after the other is taken, in
    several orders that are the same every time; the most rings win.
    """
    if not 2 < len(bandwidth) <= LARGEST or not bandwidth.any():
        return ()
    return _rings(bandwidth.astype(float).tobytes(), len(bandwidth))


@lru_cache(maxsize=64)
def _rings(data: bytes, count: int) -> tuple[Integers, ...]:
    links = np.frombuffer(data).reshape(count, count)
    rings = np.array([(0, *order) for order in permutations(range(1, count))])
    rings = rings[(links[rings, np.roll(rings, -1, axis=1)] > 0).all(axis=1)]
    random, best = np.random.default_rng(0), list[Integers]()
    most = int((links.sum(axis=1) / links[links > 0].min()).min().round())
    for _ in range(_ORDERS):
        best = max(best, _taken(links, rings[random.permutation(len(rings))]), key=len)
        if len(best) == most:
            break
    return tuple(best)


def _taken(links: Floats, rings: Integers) -> list[Integers]:
    """One ring after the other: the first of those whose links have most left."""
    left, unit = links.copy(), links[links > 0].min()
    onward, found = np.roll(rings, -1, axis=1), list[Integers]()
    while len(rings):
        room = left[rings, onward]
        if room.min(axis=1).max() < unit * (1 - 1e-9):
            break
        chosen = int(room.min(axis=1).argmax())
        left[rings[chosen], onward[chosen]] -= unit
        found.append(rings[chosen])
    return found


@dataclass(frozen=True, slots=True, eq=False)
class HostLayout:
    """A group's ranks, by their places 0 to ``size - 1`` in it.

    ``groups`` are the places of each host's ranks, or each NVLink domain's where that is larger. ``switches`` are, for
    each of these, the endpoints of the switches that reduce for all of its ranks (`schedule`); ``nodes`` are the
    graph's nodes of all endpoints, ranks first. ``meshes`` are, for each group whose GPUs are linked without a
    switch, rings over its links (`mesh`).
    """

    size: int
    groups: tuple[Integers, ...]
    switches: tuple[tuple[int, ...], ...]
    nodes: tuple[Hashable, ...]
    meshes: tuple[tuple[Integers, ...], ...]

    @property
    def width(self) -> int:
        """The ranks of the largest group: one channel for each, and for the NIC that is nearest to it."""
        return max(len(group) for group in self.groups)

    @property
    def square(self) -> bool:
        """True if there are several groups of several ranks, all of one size."""
        return len(self.groups) > 1 and {len(group) for group in self.groups} == {self.width} and self.width > 1

    def orders(self) -> list[Integers]:
        """The ranks around each channel's ring.

        Hosts are contiguous. Channel k leaves every other host by its k-th GPU and comes in by the next one in its
        ring, and the hosts between run the other way round, so that a channel stays on its rail and all NICs are
        used alike.
        """
        if len(self.groups) == 1:
            return list(self.meshes[0] or self.groups)
        return [
            np.concatenate([self._turned(host, channel) for host in range(len(self.groups))])
            for channel in range(self.width)
        ]

    def _turned(self, host: int, channel: int) -> Integers:
        rings = self.meshes[host] or (self.groups[host],)
        ring, last = rings[channel % len(rings)], self.groups[host][channel % len(self.groups[host])]
        order = np.roll(ring, -1 - int(np.flatnonzero(ring == last)[0]))
        return order[::-1] if host % 2 else order


def layout(graph: nx.DiGraph[Any], chosen: Sequence[int] | None = None) -> HostLayout:
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
    meshes = tuple(_meshes(graph, group, own) for group, own in zip(groups, places, strict=True))
    return HostLayout(len(members), places, tuple(switches), tuple(nodes), meshes)


def _meshes(graph: nx.DiGraph[Any], group: Sequence[Hashable], places: Integers) -> tuple[Integers, ...]:
    if len(group) > LARGEST:
        return ()
    bandwidth = np.zeros((len(group), len(group)))
    for source, one in enumerate(group):
        for target, other in enumerate(group):
            data = graph.get_edge_data(one, other)
            if data is not None and link_kind(graph, one, other) == "nvlink":
                bandwidth[source, target] = data["bandwidth"]
    return tuple(places[ring] for ring in mesh_rings(bandwidth))


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
    for one, other in graph.edges:
        if link_kind(graph, one, other) == "nvlink":
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
