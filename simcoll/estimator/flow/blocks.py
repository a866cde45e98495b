"""What hangs on the switches: hosts, or whatever is joined without the network, each worked out once per shape.

A block is a connected part of the topology without its switches. Blocks whose nodes and links are alike, in the graph's
order, have one shape; the ways inside are found once for the shape and renumbered. The switches that a block hangs on
are its ports.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from simcoll.estimator.flow.network import TOLL, Network
from simcoll.estimator.flow.paths import Integers, Paths

Truths: TypeAlias = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Shape:
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

    shapes: tuple[Shape, ...]
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


def blocks(network: Network) -> Blocks:
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


def _parts(network: Network, inner: Truths) -> Integers:
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


def _blocks(network: Network, switch: Truths, part: Integers) -> list[_Block]:
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


def _block(network: Network, switch: Truths, nodes: Integers, links: Integers) -> _Block:
    """Its links' ends by their places in the block; a switch by its port, numbered as the links come upon it."""
    ends = np.stack([network.source[links], network.target[links]])
    outer = ends[switch[ends]]
    seen, first = np.unique(outer, return_index=True)
    ports = seen[np.argsort(first)]
    local = np.searchsorted(nodes, ends)
    local[switch[ends]] = len(nodes) + np.argsort(np.argsort(first))[np.searchsorted(seen, outer)]
    return _Block(nodes, links, ports, local)


def _look(network: Network, block: _Block) -> tuple[bytes, ...]:
    kinds = "\n".join(network.kinds[node] for node in block.nodes).encode()
    return kinds, len(block.ports).to_bytes(4, "big"), block.ends.tobytes(), network.cost[block.links].tobytes()


def _shape(network: Network, members: list[_Block]) -> Shape:
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
    return Shape(
        len(first.nodes), paths, np.stack([each.links for each in members]), np.stack([each.ports for each in members])
    )
