"""Which links each transfer uses, and how much of each: worked out for thousands of transfers at once.

A way between two hosts is: the way out of a block to a port of it, over the fabric, into the other block. A transfer
leaves and enters by the nearest ports (a GPU's own NICs); only where these are not joined, by any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import networkx as nx
import numpy as np
import numpy.typing as npt

from simcoll.estimator.flow.blocks import Blocks, Shape, blocks
from simcoll.estimator.flow.fabric import Fabric
from simcoll.estimator.flow.network import Network, network
from simcoll.estimator.flow.paths import Floats, Integers, Walk, spread
from simcoll.topology.graph import TopologyError, derived

_TIE = 1e-10
_AT_ONCE = 1 << 22
"""How many ways out and in are weighed at once, which bounds the memory."""


@dataclass(frozen=True, slots=True, eq=False)
class Routes:
    """What each transfer puts on each link: row i is ``share[i]`` of transfer ``transfer[i]`` on link ``link[i]``."""

    transfer: Integers
    link: Integers
    share: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Router:
    """A topology prepared for routing. Links are numbered as in ``fabric.member``; ``priced`` keeps what was priced."""

    network: Network
    blocks: Blocks
    fabric: Fabric
    priced: dict[Any, Any]

    def routes(self, sources: Integers, targets: Integers) -> Routes:
        """The links from node to node by the network's numbers; raises TopologyError for nodes that are not joined."""
        parts: list[tuple[Any, Any, Any]] = []
        apart = self._within(sources, targets, parts)
        apart = self._between(apart, sources, targets, parts, _nearest)
        apart = self._between(apart, sources, targets, parts, _any)
        if len(apart):
            one, other = self.network.nodes[sources[apart[0]]], self.network.nodes[targets[apart[0]]]
            raise TopologyError(
                f"no route from {one!r} to {other!r}, expected one between any two ranks that talk; join them by edges "
                "in this direction"
            )
        transfer, link, share = (np.concatenate(part) for part in zip(*parts, strict=True))
        return Routes(transfer, link, share)

    def _within(self, sources: Integers, targets: Integers, parts: list[tuple[Any, Any, Any]]) -> Integers:
        """Route what stays in its block; returns the transfers that are left."""
        place = self.blocks
        parts.append((np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0)))
        left = (place.shape[sources] != place.shape[targets]) | (place.row[sources] != place.row[targets])
        for number, chosen in _grouped(place.shape[sources], np.flatnonzero(~left)):
            shape = place.shapes[number]
            one, other = place.local[sources[chosen]], place.local[targets[chosen]]
            left[chosen[~np.isfinite(shape.paths.cost(one, other))]] = True
            _add(parts, chosen, _in_shape(shape, place.row[sources[chosen]], one, other), None)
        return np.flatnonzero(left)

    def _between(
        self, chosen: Integers, sources: Integers, targets: Integers, parts: list[tuple[Any, Any, Any]], ways: _Ways
    ) -> Integers:
        """Route what goes over the fabric, each pair of shapes by itself; returns what has no route."""
        shape, left = self.blocks.shape, []
        for pair, members in _grouped(shape[sources] * len(self.blocks.shapes) + shape[targets], chosen):
            one, other = (self.blocks.shapes[number] for number in divmod(pair, len(self.blocks.shapes)))
            size = max(1, _AT_ONCE // max(1, one.ports.shape[1] * other.ports.shape[1]))
            for start in range(0, len(members), size):
                some = members[start : start + size]
                left.append(self._across(some, sources[some], targets[some], one, other, parts, ways))
        return np.concatenate([np.empty(0, np.int64), *left])

    def _across(
        self,
        chosen: Integers,
        sources: Integers,
        targets: Integers,
        one: Shape,
        other: Shape,
        parts: list[tuple[Any, Any, Any]],
        ways: _Ways,
    ) -> Integers:
        """Of all ways out and in, the cheapest; where several are, each alike."""
        place = self.blocks
        start, end = place.local[sources], place.local[targets]
        row, out, into, cost = _candidates(*ways(_out(one, start)), *ways(_in(other, end)))
        leave = one.ports[place.row[sources[row]], out]
        enter = other.ports[place.row[targets[row]], into]
        cost = cost + (self.fabric.cost(leave, enter) if len(row) else cost)
        best = np.full(len(chosen), np.inf)
        np.minimum.at(best, row, cost)
        kept = np.isfinite(cost) & (cost <= best[row] + _TIE)
        row, out, into, leave, enter = row[kept], out[kept], into[kept], leave[kept], enter[kept]
        share = 1.0 / np.bincount(row, minlength=len(chosen))[row]
        source_row, target_row = place.row[sources[row]], place.row[targets[row]]
        _add(parts, chosen[row], _in_shape(one, source_row, start[row], one.nodes + out), share)
        _add(parts, chosen[row], _once(self.fabric.walk, leave, enter, len(self.network.nodes)), share)
        _add(parts, chosen[row], _in_shape(other, target_row, other.nodes + into, end[row]), share)
        apart: Integers = chosen[~np.isfinite(best)]
        return apart


def router(graph: nx.DiGraph[Any]) -> Router:
    """The graph prepared for routing, once for as long as nothing in it changes."""
    return derived(graph, "router", _router)


def _router(graph: nx.DiGraph[Any]) -> Router:
    arrays = network(graph)
    cut = blocks(arrays)
    return Router(arrays, cut, Fabric(arrays, cut.held), {})


_Ways = Callable[[Floats], "tuple[npt.NDArray[np.bool_], Floats]"]


def _nearest(costs: Floats) -> tuple[npt.NDArray[np.bool_], Floats]:
    least = costs.min(axis=1, initial=np.inf)[:, None]
    return np.isfinite(costs) & (costs <= least + _TIE), costs


def _any(costs: Floats) -> tuple[npt.NDArray[np.bool_], Floats]:
    return np.isfinite(costs), costs


def _out(shape: Shape, start: Integers) -> Floats:
    """What the way from each node to each port costs."""
    return _to_ports(start, shape, shape.paths.cost)


def _in(shape: Shape, end: Integers) -> Floats:
    """What the way from each port to each node costs."""
    return _to_ports(end, shape, lambda nodes, ports: shape.paths.cost(ports, nodes))


def _to_ports(ends: Integers, shape: Shape, cost: Callable[[Integers, Integers], Floats]) -> Floats:
    """``cost`` of each node, of which some may be the same, with each port."""
    nodes, row = np.unique(ends, return_inverse=True)
    ports = shape.nodes + np.arange(shape.ports.shape[1])
    grid = np.meshgrid(nodes, ports, indexing="ij")
    costs = cost(grid[0].reshape(-1), grid[1].reshape(-1)).reshape(grid[0].shape)
    found: Floats = costs[row]
    return found


def _candidates(
    leaving: npt.NDArray[np.bool_], out_costs: Floats, entering: npt.NDArray[np.bool_], in_costs: Floats
) -> tuple[Integers, Integers, Integers, Floats]:
    """Every pair of a port to leave by and one to enter by: its row, the ports, and the cost of both ways."""
    first, out = np.nonzero(leaving)
    counts = entering.sum(axis=1)
    again, place = spread(counts[first].astype(np.int64))
    row = first[again]
    ports = np.nonzero(entering)[1]
    into = ports[(np.cumsum(counts) - counts)[row] + place]
    out = out[again]
    return row, out, into, out_costs[row, out] + in_costs[row, into]


def _grouped(keys: Integers, chosen: Integers) -> Iterator[tuple[int, Integers]]:
    """The chosen ones by their key."""
    own = keys[chosen]
    for key in np.unique(own):
        yield int(key), chosen[own == key]


def _in_shape(shape: Shape, row: Integers, start: Integers, end: Integers) -> Walk:
    walk = _once(shape.paths.walk, start, end, shape.paths.nodes)
    return Walk(walk.pair, shape.links[row[walk.pair], walk.link], walk.share)


def _once(find: Callable[[Integers, Integers], Walk], start: Integers, end: Integers, base: int) -> Walk:
    """Walk each different pair once, and copy what was found to every pair that is the same."""
    keys, same = np.unique(start * base + end, return_inverse=True)
    walk = find(keys // base, keys % base)
    counts = np.bincount(walk.pair, minlength=len(keys))
    pair, place = spread(counts[same])
    item = (np.cumsum(counts) - counts)[same][pair] + place
    return Walk(pair, walk.link[item], walk.share[item])


def _add(parts: list[tuple[Any, Any, Any]], transfer: Integers, walk: Walk, share: Floats | None) -> None:
    parts.append((transfer[walk.pair], walk.link, walk.share if share is None else walk.share * share[walk.pair]))
