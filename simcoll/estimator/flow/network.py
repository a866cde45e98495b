"""A topology as arrays: its nodes, its links, and what each link costs a route.

A route prefers kinds of link as NCCL's path types do (NVLink before PCIe before the link between CPUs before the
network), then fewer hops, then lower latency. Graphs that do not say what their links are get it from the nodes' kinds.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import networkx as nx
import numpy as np

from simcoll.estimator.flow.paths import Floats, Integers
from simcoll.topology.graph import LINKS, check, link_kind, ranks

_COSTS = np.array([1.0, 2.0, 4.0, 16.0, 64.0])
"""Of each of `LINKS`."""

TOLL = 4096.0
"""What it costs to pass through a GPU, or from one side of a host to the other through a NIC: never, if avoidable."""


@dataclass(frozen=True, slots=True, eq=False)
class Network:
    """Nodes and links by number, both in the graph's order. ``ranks`` are the nodes of the ranks.

    ``source`` and ``target`` are the ends of each link, ``kind`` an index into `LINKS`, ``cost`` what it costs a route.
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
        """Which nodes are of a kind, as an array of truth values."""
        return np.array([each == kind for each in self.kinds])


def network(graph: nx.DiGraph[Any]) -> Network:
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
    return Network(
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
