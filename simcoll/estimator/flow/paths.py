"""Cheapest paths in a small graph, for many pairs at once: costs by relaxation, paths by walking all pairs in step.

Where several paths cost the same, a transfer is split at each node evenly over the links that lead on at that cost, as
ECMP does for many flows. A link may stand for several alike ones (`fabric`), and then counts as often.

:class:`NumberedGraph` is a topology as arrays: its nodes, its links, and the cost of each link for a route.

A route prefers kinds of link as NCCL's path types do (NVLink before PCIe before the link between CPUs before the
network), then fewer hops, then lower latency. Links without a kind get it from the nodes' kinds.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, TypeAlias

import networkx as nx
import numpy as np
import numpy.typing as npt

from simcoll.topology.graph import LINKS, check, link_kind, ranks

Floats: TypeAlias = npt.NDArray[np.float64]
Integers: TypeAlias = npt.NDArray[np.int64]

_TIE = 1e-10
"""Costs are whole numbers plus a latency below one; costs closer than this differ by rounding only."""


@dataclass(frozen=True, slots=True)
class Walk:
    """The links that each pair uses: row i says that ``pair[i]`` puts ``share[i]`` of its bytes on ``link[i]``."""

    pair: Integers
    link: Integers
    share: Floats


def spread(counts: Integers) -> tuple[Integers, Integers]:
    """For rows of so many items each: the row of every item, and its place in the row."""
    rows = np.repeat(np.arange(len(counts)), counts)
    return rows, np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)


class Paths:
    """A directed graph of ``nodes`` nodes, given by its edges.

    ``cost`` is the cost of an edge, ``toll`` that of a node that a path passes through, ``links`` the number of the
    link that an edge is (negative: none), ``weight`` the number of alike links that it stands for.
    """

    def __init__(
        self,
        nodes: int,
        source: Integers,
        target: Integers,
        cost: Floats,
        links: Integers,
        weight: Floats | None = None,
        toll: Floats | None = None,
    ) -> None:
        order = np.lexsort((target, source))
        self.nodes = nodes
        self._source, self._target, self._links = source[order], target[order], links[order]
        self._cost = cost[order]
        self._weight = np.ones(len(order)) if weight is None else weight[order]
        self._toll = np.zeros(nodes) if toll is None else toll
        self._first = np.searchsorted(self._source, np.arange(nodes + 1)).astype(np.int64)
        self._column = np.full(nodes, -1, np.int64)
        self._costs = np.empty((nodes, 0))

    def cost(self, sources: Integers, targets: Integers) -> Floats:
        """Returns the cost of each pair's cheapest path; infinite where there is none."""
        self._solve(targets)
        found: Floats = self._costs[sources, self._column[targets]]
        return found

    def _solve(self, targets: Integers) -> None:
        missing = np.unique(targets[self._column[targets] < 0])
        if len(missing):
            self._column[missing] = self._costs.shape[1] + np.arange(len(missing))
            self._costs = np.concatenate([self._costs, self._relaxed(missing)], axis=1)

    def _relaxed(self, targets: Integers) -> Floats:
        """Bellman and Ford's relaxation, for all targets at once: as many rounds as the longest path has hops."""
        costs = np.full((self.nodes, len(targets)), np.inf)
        toll = np.repeat(self._toll[:, None], len(targets), axis=1)
        own = (targets, np.arange(len(targets)))
        costs[own], toll[own] = 0.0, 0.0
        leaving = np.unique(self._source)
        while len(leaving):
            onward = (costs + toll)[self._target] + self._cost[:, None]
            better = np.minimum.reduceat(onward, self._first[leaving], axis=0)
            changed = better < costs[leaving] - _TIE
            if not changed.any():
                break
            costs[leaving] = np.where(changed, better, costs[leaving])
        return costs

    def walk(self, sources: Integers, targets: Integers) -> Walk:
        """The links on each pair's cheapest paths; a pair without a path uses none."""
        reached = np.isfinite(self.cost(sources, targets)) & (sources != targets)
        pair = np.flatnonzero(reached)
        node, share = sources[pair], np.ones(len(pair))
        steps: list[tuple[Any, Any, Any]] = []
        while len(pair):
            row, edge, part = self._onward(node, targets[pair])
            pair, share = pair[row], share[row] * part
            steps.append((pair, self._links[edge], share))
            pair, node, share = self._met(pair, self._target[edge], share)
            on = node != targets[pair]
            pair, node, share = pair[on], node[on], share[on]
        return _joined(steps)

    def _onward(self, node: Integers, target: Integers) -> tuple[Integers, Integers, Floats]:
        """For each place: the rows, edges and shares with which its bytes go on."""
        row, place = spread(self._first[node + 1] - self._first[node])
        edge = self._first[node][row] + place
        column, head = self._column[target][row], self._target[edge]
        toll = np.where(head == target[row], 0.0, self._toll[head])
        onward = self._cost[edge] + toll + self._costs[head, column]
        kept = onward <= self._costs[node[row], column] + _TIE
        row, edge = row[kept], edge[kept]
        weight = self._weight[edge]
        return row, edge, weight / np.bincount(row, weight, len(node))[row]

    def _met(self, pair: Integers, node: Integers, share: Floats) -> tuple[Integers, Integers, Floats]:
        """Parts of one pair that have come to one node go on as one."""
        keys, place = np.unique(pair * self.nodes + node, return_inverse=True)
        return keys // self.nodes, keys % self.nodes, np.bincount(place, share, len(keys)).astype(float)


def _joined(steps: list[tuple[Any, Any, Any]]) -> Walk:
    if not steps:
        return Walk(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))
    pair, link, share = (np.concatenate(part) for part in zip(*steps, strict=True))
    real = link >= 0
    pair, link, share = pair[real], link[real], share[real]
    order = np.argsort(pair, kind="stable")
    return Walk(pair[order], link[order], share[order])


_COSTS = np.array([1.0, 2.0, 4.0, 16.0, 64.0])
"""One value for each of `LINKS`."""

TOLL = 4096.0
"""The cost of a path through a GPU, or through a NIC to the other side of a host: so high that others are preferred."""


@dataclass(frozen=True, slots=True, eq=False)
class NumberedGraph:
    """Nodes and links by number, both in the graph's order. ``ranks`` are the nodes of the ranks.

    ``source`` and ``target`` are the ends of each link, ``kind`` an index into `LINKS`, ``cost`` its cost for a route.
    """

    nodes: tuple[Hashable, ...]
    number: dict[Hashable, int]
    kinds: tuple[str, ...]
    ranks: Integers
    source: Integers
    target: Integers
    bandwidth: Floats
    latency: Floats
    kind: Integers
    cost: Floats

    def of_kind(self, kind: str) -> Any:
        """A mask of the nodes of a kind."""
        return np.array([each == kind for each in self.kinds])


def network(graph: nx.DiGraph[Any]) -> NumberedGraph:
    """The graph as arrays; raises TopologyError for what is no topology."""
    check(graph)
    nodes = tuple(graph.nodes)
    number = {node: place for place, node in enumerate(nodes)}
    kinds = tuple(str(graph.nodes[node]["kind"]) for node in nodes)
    rows = [
        (number[one], number[other], data["bandwidth"], data["latency"], link_kind(graph, one, other))
        for one, other, data in graph.edges(data=True)
    ]
    source, target, bandwidth, latency, kind = zip(*rows, strict=True) if rows else ((), (), (), (), ())
    latencies = np.array(latency, float)
    kind_numbers = np.array([LINKS.index(each) for each in kind], np.int64)
    return NumberedGraph(
        nodes,
        number,
        kinds,
        np.array([number[node] for node in ranks(graph)], np.int64),
        np.array(source, np.int64),
        np.array(target, np.int64),
        np.array(bandwidth, float),
        latencies,
        kind_numbers,
        _COSTS[kind_numbers] + latencies / (max(float(latencies.max(initial=0.0)), 1e-12) * (len(nodes) + 1)),
    )
