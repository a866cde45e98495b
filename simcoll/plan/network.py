"""The cost of collectives on a cluster: on a graph as it stands, or on two NVLink domains that stand for all.

The closed form of `simcoll.estimator` needs a few numbers of a group: members, domains, bandwidths, latencies. With
like servers on one ideal network the bandwidths and latencies are those of two domains, however many there are.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field, replace
from typing import Any

import networkx as nx
import numpy as np

from simcoll.estimator.estimate import estimate, seconds_on
from simcoll.estimator.shape import ClusterShape, shape_of
from simcoll.topology.clusters import on_one_network
from simcoll.topology.clusters import plan as servers_of
from simcoll.topology.graph import ranks as ranks_of
from simcoll.topology.hardware import GPUS
from simcoll.topology.request import TopologyRequest


@dataclass(frozen=True, slots=True)
class Network:
    """A cluster of ``gpus``, of which the graph holds the first ``held``.

    Where it does not hold all, the cluster is of like servers on one ideal network, with ``domain`` GPUs in each NVLink
    domain, and the graph has two whole domains.
    """

    graph: nx.DiGraph[Any]
    gpus: int
    held: int
    domain: int = 0
    _shapes: dict[range, ClusterShape] = field(default_factory=dict, compare=False)

    @property
    def family(self) -> str:
        """The GPU; an empty text where it is not known."""
        return str(self.graph.graph.get("gpu", "")).lower()

    @property
    def capacity(self) -> float:
        """Bytes of memory of a GPU; 0 where it is not known."""
        found = GPUS.get(self.family)
        return 0.0 if found is None else found.memory

    def seconds(self, op: str, size: int, ranks: range) -> float:
        """Seconds of a collective of so many bytes; raises EstimateError, TopologyError where there is no way."""
        if max(ranks[0], ranks[-1]) < self.held or self.held == self.gpus:
            return estimate(op, size, self.graph, ranks=ranks).seconds
        shape = self._shapes.get(ranks)
        if shape is None:
            shape = self._shapes[ranks] = self._shape(ranks)
        return seconds_on(op, size, shape)

    def _shape(self, ranks: range) -> ClusterShape:
        """The numbers of a group: bandwidths and latencies of its fullest and its emptiest domain, counts of all."""
        members = np.sort(np.asarray(ranks))
        _, first, counts = np.unique(members // self.domain, return_index=True, return_counts=True)
        chosen = list(dict.fromkeys((int(counts.argmin()), int(counts.argmax()))))
        if len(chosen) < min(2, len(counts)):
            chosen *= 2
        inside: list[int] = []
        for place, one in enumerate(chosen):
            own = members[first[one] : first[one] + counts[one]] % self.domain + place * self.domain
            inside += own.tolist()
        shape, least = shape_of(self.graph, tuple(inside)), int(counts.min())
        if len(counts) == 1:
            return shape
        count, local = len(ranks), len(ranks) / len(counts)
        # What leaves a domain grows with its members; of an exchange the emptiest one sends the most for each.
        exchange = shape.network / least * local * (count - local) / max(1, count - least)
        return replace(
            shape,
            ranks=count,
            domains=len(counts),
            local=local,
            root_local=int(counts[(ranks[0] // self.domain) - members[0] // self.domain]) if local > 1 else 1,
            exchange_network=exchange,
            crowd_network=shape.network / least * local,
        )


def network_of(topology: nx.DiGraph[Any] | Network) -> Network:
    """The network of a graph; raises TopologyError for what is no topology."""
    if isinstance(topology, Network):
        return topology
    gpus = len(ranks_of(topology))
    return Network(topology, gpus, gpus)


@functools.lru_cache(maxsize=64)
def network_asked(request: TopologyRequest) -> Network:
    """The network of a request; raises TopologyError as `TopologyRequest.build` does."""
    if request.topology is not None or not request.is_given:
        return network_of(request.build())
    servers = servers_of(**request.hardware())
    gpus = servers.host.gpus
    domain = max(servers.domain, gpus)
    least = 2 * -(-domain // gpus)
    if servers.nodes <= least or domain % gpus:
        return network_of(on_one_network(servers))
    return Network(on_one_network(replace(servers, nodes=least)), servers.nodes * gpus, least * gpus, domain)
