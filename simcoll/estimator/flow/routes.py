"""Routes: the links that each transfer uses, and its share of each, for thousands of transfers at once.

A way between two hosts is: the way out of a block to a port of it, over the fabric, into the other block. A transfer
leaves and enters by the nearest ports (a GPU's own NICs); only where these are not joined, by any.

A *block* is a connected part of the topology without its switches: a host, or whatever is joined without the network.
Blocks whose nodes and links are alike, in the graph's order, have one shape; the ways inside are found once for the
shape and renumbered. The switches that a block hangs on are its ports.

The *fabric* is the switches between the hosts, with those that no route can tell apart taken together. The spines of a
pod all join the same leaves, and traffic that is split evenly loads them alike: one node with the sum of their links
has the same loads. Which switches are alike is found by refining colours until neighbours of like switches are alike
(an equitable partition; the switches that hosts hang on keep a colour each), so that any edited link splits exactly
those that it makes unlike.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import networkx as nx
import numpy as np
import numpy.typing as npt

from simcoll.errors import TopologyError
from simcoll.estimator.flow.paths import TOLL, Floats, Integers, NumberedGraph, Paths, Walk, network, spread
from simcoll.topology.graph import derived

_Hashes = npt.NDArray[np.uint64]


class SwitchFabric:
    """The switches of a network as classes; links of the same two classes, bandwidth and latency are one wide link.

    The first links are the network's own, by their numbers, and the wide links follow. ``member`` is for each link one
    of the network's that it stands for, ``width`` how many.
    """

    def __init__(self, network: NumberedGraph, held: Integers) -> None:
        switch = network.of_kind("switch")
        inner = np.flatnonzero(switch[network.source] & switch[network.target])
        colours = _refined(network, inner, switch, held)
        self._colour = colours
        source, target = colours[network.source[inner]], colours[network.target[inner]]
        keys = (source << 42) + (target << 21) + _looks(network, inner)
        _, first, count = np.unique(keys, return_index=True, return_counts=True)
        own = len(network.source)
        self.member: Integers = np.concatenate([np.arange(own), inner[first]]).astype(np.int64)
        self.width: Floats = np.concatenate([np.ones(own), count]).astype(float)
        members = np.bincount(colours[switch], minlength=1)
        self._paths = Paths(
            len(members),
            source[first],
            target[first],
            network.cost[inner[first]],
            own + np.arange(len(first)),
            count / members[source[first]],
        )

    def cost(self, sources: Integers, targets: Integers) -> Floats:
        """Returns the cost of the path from one switch to another, by the network's numbers of the switches."""
        return self._paths.cost(self._colour[sources], self._colour[targets])

    def walk(self, sources: Integers, targets: Integers) -> Walk:
        """The links from one switch to another."""
        return self._paths.walk(self._colour[sources], self._colour[targets])


def _looks(network: NumberedGraph, links: Integers) -> Integers:
    """A number for each pair of bandwidth and cost."""
    pairs = network.bandwidth[links] + 1j * network.cost[links]
    return np.unique(pairs, return_inverse=True)[1].reshape(-1).astype(np.int64)


def _refined(network: NumberedGraph, inner: Integers, switch: npt.NDArray[np.bool_], held: Integers) -> Integers:
    """The class of each switch, from 0; -1 for other nodes."""
    source, target = network.source[inner], network.target[inner]
    look = _mixed(_looks(network, inner).astype(np.uint64))
    colours = np.zeros(len(switch), np.int64)
    colours[held] = 1 + np.arange(len(held))
    colours[~switch] = -1
    places = np.flatnonzero(switch)
    before, classes = -1, 0
    while before < classes:
        sign = _mixed(colours.astype(np.uint64))
        out = _mixed(sign[target] + look)
        into = _mixed(sign[source] * np.uint64(3) + look)
        total = sign.copy()
        np.add.at(total, source, out)
        np.add.at(total, target, into)
        found, colours[places] = np.unique(total[places], return_inverse=True)
        before, classes = classes, len(found)
    return colours


def _mixed(values: _Hashes) -> _Hashes:
    """The finaliser of splitmix64: a different 64-bit number for each one."""
    with np.errstate(over="ignore"):
        mixed = values + np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return mixed ^ (mixed >> np.uint64(31))


Truths: TypeAlias = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class RouteShape:
    """Blocks that are alike. Nodes 0 to ``nodes - 1`` are the block's own, and then come its ports.

    ``links[block]`` are the network's numbers of the links, ``ports[block]`` of the switches, a row for each block of
    the shape; ``paths`` has the ways from each node to each.
    """

    nodes: int
    paths: Paths
    links: Integers
    ports: Integers


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """The shapes; for each node of the network its shape (-1: a switch), its block's row, its number in the block."""

    shapes: tuple[RouteShape, ...]
    shape: Integers
    row: Integers
    local: Integers
    held: Integers


@dataclass(frozen=True, slots=True, eq=False)
class _Block:
    """One block: its nodes, links and ports by the network's numbers, and its links' ends by its own."""

    nodes: Integers
    links: Integers
    ports: Integers
    ends: Integers


def blocks(network: NumberedGraph) -> Blocks:
    """Cut the network at its switches."""
    switch = network.of_kind("switch")
    part = _parts(network, ~(switch[network.source] | switch[network.target]))
    alike: dict[tuple[bytes, ...], list[_Block]] = defaultdict(list)
    for block in _blocks(network, switch, part):
        alike[_look(network, block)].append(block)
    shape, row, local = (np.full(len(network.nodes), -1, np.int64) for _ in range(3))
    shapes = []
    for number, members in enumerate(alike.values()):
        shapes.append(_shape(network, members))
        for place, block in enumerate(members):
            shape[block.nodes], row[block.nodes], local[block.nodes] = number, place, np.arange(len(block.nodes))
    outside = np.flatnonzero(switch[network.source] != switch[network.target])
    ends = np.concatenate([network.source[outside], network.target[outside]])
    return Blocks(tuple(shapes), shape, row, local, np.unique(ends[switch[ends]]))


def _parts(network: NumberedGraph, inner: Truths) -> Integers:
    """For each node the smallest number in its connected part, over the inner links in either direction."""
    part = np.arange(len(network.nodes))
    source, target = network.source[inner], network.target[inner]
    while True:
        before = part.copy()
        np.minimum.at(part, source, part[target])
        np.minimum.at(part, target, part[source])
        part = part[part]
        if (part == before).all():
            return part


def _blocks(network: NumberedGraph, switch: Truths, part: Integers) -> list[_Block]:
    """Every block, in the order of its first node."""
    own = np.flatnonzero(~switch)
    order = own[np.argsort(part[own], kind="stable")]
    heads, starts = np.unique(part[order], return_index=True)
    touching = np.flatnonzero(~(switch[network.source] & switch[network.target]))
    inside = np.where(switch[network.source[touching]], network.target[touching], network.source[touching])
    links = touching[np.argsort(part[inside], kind="stable")]
    bounds = np.searchsorted(np.sort(part[inside]), heads)
    nodes_of, links_of = np.split(order, starts[1:]), np.split(links, bounds[1:])
    return [_block(network, switch, nodes, links) for nodes, links in zip(nodes_of, links_of, strict=True)]


def _block(network: NumberedGraph, switch: Truths, nodes: Integers, links: Integers) -> _Block:
    """Its links' ends by their places in the block; a switch by its port, numbered as the links come upon it."""
    ends = np.stack([network.source[links], network.target[links]])
    outer = ends[switch[ends]]
    seen, first = np.unique(outer, return_index=True)
    ports = seen[np.argsort(first)]
    local = np.searchsorted(nodes, ends)
    local[switch[ends]] = len(nodes) + np.argsort(np.argsort(first))[np.searchsorted(seen, outer)]
    return _Block(nodes, links, ports, local)


def _look(network: NumberedGraph, block: _Block) -> tuple[bytes, ...]:
    kinds = "\n".join(network.kinds[node] for node in block.nodes).encode()
    return kinds, len(block.ports).to_bytes(4, "big"), block.ends.tobytes(), network.cost[block.links].tobytes()


def _shape(network: NumberedGraph, members: list[_Block]) -> RouteShape:
    """A NIC has an outer side in front of the network and an inner side behind it, and is no way through a host."""
    first = members[0]
    kinds = np.array([network.kinds[node] for node in first.nodes] + ["switch"] * len(first.ports))
    nics = np.flatnonzero(kinds == "nic")
    leaving = np.arange(len(kinds))
    leaving[nics] = len(kinds) + np.arange(len(nics))
    source, target = first.ends
    within = source < len(first.nodes)
    towards = within & (target < len(first.nodes)) & (kinds[source] != "nic")
    onward = within & ((kinds[target] == "switch") | (kinds[target] == "nic"))
    toll = np.zeros(len(kinds) + len(nics))
    toll[np.flatnonzero(kinds == "gpu")] = TOLL
    paths = Paths(
        len(toll),
        np.concatenate([np.where(onward, leaving[source], source), leaving[nics]]),
        np.concatenate([np.where(towards, leaving[target], target), nics]),
        np.concatenate([network.cost[first.links], np.full(len(nics), TOLL)]),
        np.concatenate([np.arange(len(first.links)), np.full(len(nics), -1)]),
        toll=toll,
    )
    return RouteShape(
        len(first.nodes), paths, np.stack([each.links for each in members]), np.stack([each.ports for each in members])
    )


_TIE = 1e-10
_AT_ONCE = 1 << 22
"""The number of ways out and in that are compared at once, which bounds the memory."""


@dataclass(frozen=True, slots=True, eq=False)
class Routes:
    """The load of each transfer on each link: row i is ``share[i]`` of transfer ``transfer[i]`` on link ``link[i]``."""

    transfer: Integers
    link: Integers
    share: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Router:
    """A topology prepared for routing. Links are numbered as in ``fabric.member``; ``priced`` keeps what was priced."""

    network: NumberedGraph
    blocks: Blocks
    fabric: SwitchFabric
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
        """Route the transfers that stay in their block; returns the others."""
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
        """Route the transfers over the fabric, each pair of shapes by itself; returns those without a route."""
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
        one: RouteShape,
        other: RouteShape,
        parts: list[tuple[Any, Any, Any]],
        ways: _Ways,
    ) -> Integers:
        """The cheapest of all ways out and in; equally cheap ones share alike."""
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
    return Router(arrays, cut, SwitchFabric(arrays, cut.held), {})


_Ways = Callable[[Floats], "tuple[npt.NDArray[np.bool_], Floats]"]


def _nearest(costs: Floats) -> tuple[npt.NDArray[np.bool_], Floats]:
    least = costs.min(axis=1, initial=np.inf)[:, None]
    return np.isfinite(costs) & (costs <= least + _TIE), costs


def _any(costs: Floats) -> tuple[npt.NDArray[np.bool_], Floats]:
    return np.isfinite(costs), costs


def _out(shape: RouteShape, start: Integers) -> Floats:
    """Returns the cost of the path from each node to each port."""
    return _to_ports(start, shape, shape.paths.cost)


def _in(shape: RouteShape, end: Integers) -> Floats:
    """Returns the cost of the path from each port to each node."""
    return _to_ports(end, shape, lambda nodes, ports: shape.paths.cost(ports, nodes))


def _to_ports(ends: Integers, shape: RouteShape, cost: Callable[[Integers, Integers], Floats]) -> Floats:
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


def _in_shape(shape: RouteShape, row: Integers, start: Integers, end: Integers) -> Walk:
    walk = _once(shape.paths.walk, start, end, shape.paths.nodes)
    return Walk(walk.pair, shape.links[row[walk.pair], walk.link], walk.share)


def _once(find: Callable[[Integers, Integers], Walk], start: Integers, end: Integers, base: int) -> Walk:
    """Walk each different pair once, and copy the result to every pair that is the same."""
    keys, same = np.unique(start * base + end, return_inverse=True)
    walk = find(keys // base, keys % base)
    counts = np.bincount(walk.pair, minlength=len(keys))
    pair, place = spread(counts[same])
    item = (np.cumsum(counts) - counts)[same][pair] + place
    return Walk(pair, walk.link[item], walk.share[item])


def _add(parts: list[tuple[Any, Any, Any]], transfer: Integers, walk: Walk, share: Floats | None) -> None:
    parts.append((transfer[walk.pair], walk.link, walk.share if share is None else walk.share * share[walk.pair]))
