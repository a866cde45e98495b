"""Algorithms in two levels: inside the hosts (or NVLink domains) and between them, and those where NVSwitches reduce.

Between hosts, the ranks of one place in their hosts make a ring each, so that every NIC carries its share. The l-th
rank of each host handles the l-th shard of the data.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace

import numpy as np

from simcoll.errors import TopologyError
from simcoll.estimator.flow.layout import HostLayout
from simcoll.estimator.flow.paths import Integers
from simcoll.estimator.flow.ring_schedules import chain, ring
from simcoll.estimator.flow.schedule import Schedule, Shifts, TransferStep, together
from simcoll.estimator.flow.tree_schedules import depths, double_tree, heights, piped, pipeline

_Blocks = Callable[[int], Sequence[tuple[Hashable, ...]]]


def _grid(layout: HostLayout) -> Integers:
    """The rank at each host and place in it."""
    if not layout.square:
        raise TopologyError(
            f"hosts have {sorted({len(group) for group in layout.groups})} of the group's ranks on "
            f"{len(layout.groups)} hosts, expected several hosts with the same number of ranks, at least 2, for a "
            "hierarchical algorithm; choose another one"
        )
    return np.stack(layout.groups)


def _inside(grid: Integers, size: float, behind: int, shard: _Blocks) -> TransferStep:
    """A ring in each host, with the blocks that ``shard`` names for each place."""
    width = grid.shape[1]
    return together([ring(hosts, size, width - 1, behind, shard) for hosts in grid])


def all_reduce(layout: HostLayout, size: float, root: int) -> Schedule:
    """Reduce-scatter in each host, all-reduce between hosts, all-gather in each host."""
    grid = _grid(layout)
    hosts, width = grid.shape

    def between(place: int) -> _Blocks:
        return lambda host: [(place, host)]

    def shard(place: int) -> list[tuple[Hashable, ...]]:
        return [(place, host) for host in range(hosts)]

    part = size / width
    rails = [ring(grid[:, k], part / hosts, 2 * (hosts - 1), 0, between(k)) for k in range(width)]
    return (_inside(grid, part, 1, shard), together(rails), _inside(grid, part, 0, shard))


def _owned(layout: HostLayout, size: float, behind: int) -> tuple[TransferStep, TransferStep]:
    """The rings in each host and those between the hosts, which carry the blocks that belong to a rank each."""
    grid = _grid(layout)
    hosts, width = grid.shape

    def between(place: int) -> _Blocks:
        return lambda host: [(int(grid[host, place]),)]

    rails = [ring(grid[:, k], size / layout.size, hosts - 1, behind, between(k)) for k in range(width)]
    inside = _inside(grid, size / width, behind, lambda place: [(int(rank),) for rank in grid[:, place]])
    return inside, together(rails)


def all_gather(layout: HostLayout, size: float, root: int) -> Schedule:
    """Between hosts first, and then each rank has the blocks that its host needs from its place."""
    inside, between = _owned(layout, size, 0)
    return (between, inside)


def reduce_scatter(layout: HostLayout, size: float, root: int) -> Schedule:
    """Inside the hosts first, and then the remaining blocks between them."""
    return _owned(layout, size, 1)


def broadcast(layout: HostLayout, size: float, root: int) -> Schedule:
    """The root scatters in its host, each shard goes along the hosts, and each host gathers."""
    near, rails, inside = _of_root(_from(_grid(layout), root), size, root, 0)
    return (replace(near, sources=near.targets, targets=near.sources), rails, inside)


def reduce(layout: HostLayout, size: float, root: int) -> Schedule:
    """The way of a broadcast, backwards."""
    near, rails, inside = _of_root(np.roll(_from(_grid(layout), root), -1, axis=0), size, root, 1)
    return (inside, rails, near)


def _of_root(grid: Integers, size: float, root: int, behind: int) -> tuple[TransferStep, TransferStep, TransferStep]:
    """The transfers from the root's host to it, chains along the hosts, rings in each host: a shard for each place."""
    part, own = size / grid.shape[1], grid[-behind]
    places = [place for place, rank in enumerate(own) if rank != root]
    near = TransferStep(
        own[places], np.full(len(places), root), np.full(len(places), part), lambda _: [[(p, 0)] for p in places]
    )
    rails = together([chain(grid[:, place], part, place) for place in range(grid.shape[1])])
    return near, rails, _inside(grid, part, behind, lambda place: [(place, 0)])


def _from(grid: Integers, root: int) -> Integers:
    """The hosts beginning with the root's."""
    return np.roll(grid, -int(np.flatnonzero((grid == root).any(axis=1))[0]), axis=0)


def all_to_all(layout: HostLayout, size: float, root: int) -> Schedule:
    """Inside a host to the rank of the place for which it is, then between the hosts on the rails."""
    grid = _grid(layout)
    hosts, width = grid.shape
    host, place = np.indices(grid.shape)

    def inside(distance: int) -> TransferStep:
        towards = (place + distance) % width
        return _exchange(
            grid,
            grid[host, towards],
            size / width,
            lambda h, p: [(int(grid[h, p]), int(rank)) for rank in grid[:, (p + distance) % width]],
        )

    def between(distance: int) -> TransferStep:
        towards = (host + distance) % hosts
        return _exchange(
            grid,
            grid[towards, place],
            size / hosts,
            lambda h, p: [(int(rank), int(grid[(h + distance) % hosts, p])) for rank in grid[h]],
        )

    return (Shifts(width, inside), Shifts(hosts, between))


def _exchange(
    sources: Integers, targets: Integers, size: float, blocks: Callable[[int, int], Sequence[tuple[int, int]]]
) -> TransferStep:
    hosts, width = sources.shape
    return TransferStep(
        sources.reshape(-1),
        targets.reshape(-1),
        np.full(sources.size, size),
        lambda _: [blocks(host, place) for host in range(hosts) for place in range(width)],
    )


def _switches(layout: HostLayout) -> tuple[int, ...]:
    if len(layout.groups) != 1 or not layout.switches[0] or layout.size < 2:
        raise TopologyError(
            f"the group's {layout.size} ranks are on {len(layout.groups)} hosts or NVLink domains, with "
            f"{len(layout.switches[0])} switches that reduce for all ranks of the first; expected at least 2 ranks on "
            "one, joined by a node of kind nvswitch with sharp=True, for nvls; choose another algorithm"
        )
    return layout.switches[0]


def nvls_all_reduce(layout: HostLayout, size: float, root: int) -> Schedule:
    """Everybody sends the data to the switch once and gets it back, reduced, once."""
    return (_through(layout, size, size, lambda rank: [("all",)], lambda rank: [("all",)]),)


def nvls_all_gather(layout: HostLayout, size: float, root: int) -> Schedule:
    """Everybody sends its block to the switch, which gives all of them to everybody."""
    every = [(rank,) for rank in range(layout.size)]
    return (_through(layout, size / layout.size, size, lambda rank: [(rank,)], lambda rank: every),)


def nvls_reduce_scatter(layout: HostLayout, size: float, root: int) -> Schedule:
    """Everybody sends the data to the switch, which gives each its block, reduced."""
    every = [(rank,) for rank in range(layout.size)]
    return (_through(layout, size, size / layout.size, lambda rank: every, lambda rank: [(rank,)]),)


def _through(layout: HostLayout, sent: float, received: float, up: _Blocks, down: _Blocks) -> TransferStep:
    """Up to the switches and down again; each of several switches deals with a part of every block."""
    switches = _switches(layout)
    ranks, switch = (part.reshape(-1) for part in np.meshgrid(np.arange(layout.size), switches))
    part = 1 / len(switches)

    def carried(_: int) -> list[list[tuple[Hashable, ...]]]:
        pairs = list(zip(ranks.tolist(), switch.tolist(), strict=True))
        return [[(*b, s) for b in each(rank)] for each in (up, down) for rank, s in pairs]

    return TransferStep(
        np.concatenate([ranks, switch]),
        np.concatenate([switch, ranks]),
        np.repeat([sent * part, received * part], len(ranks)),
        carried,
        2,
        np.repeat([0, 1], len(ranks)),
        True,
    )


def nvls_tree(layout: HostLayout, size: float, root: int) -> Schedule:
    """The switch of each host reduces a shard for each rank, double trees join the hosts, the switches give back."""
    grid = _grid(layout)
    if not all(layout.switches):
        raise TopologyError(
            "not every host has a node of kind nvswitch with sharp=True that is linked with all of its ranks, expected "
            "one for nvls_tree; choose another algorithm"
        )
    switches = np.array([each[0] for each in layout.switches])
    half, trees = size / grid.shape[1] / 2, [(place, tree) for place in range(grid.shape[1]) for tree in (0, 1)]
    return (pipeline([step for tree in trees for step in _switch_tree(grid, switches, *tree, half)]),)


def _switch_tree(grid: Integers, switches: Integers, place: int, tree: int, size: float) -> list[TransferStep]:
    """Half a shard: all GPUs of a host to its switch, which gives the sum to the one that is in the tree; and back."""
    rail, block = grid[:, place], (place, tree)
    parent = double_tree(len(grid), tree)
    child, high = np.flatnonzero(parent >= 0), heights(parent)
    below, above, height = rail[child], rail[parent[child]], int(high.max())
    return [
        *(piped(member, switches, size, block, 0) for member in grid.T),
        piped(switches, rail, size, block, 1),
        piped(below, above, size, block, 2 + high[child]),
        piped(above, below, size, block, 1 + height + depths(parent)[child]),
        piped(rail, switches, size, block, 2 + 2 * height),
        *(piped(switches, member, size, block, 3 + 2 * height) for member in grid.T),
    ]
