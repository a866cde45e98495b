"""Trees: NCCL's double binary tree (Sanders, Speck and Traeff) between hosts with chains inside; binomial trees.

Each of the two trees carries half of the data, and a rank that has children in the one is a leaf of the other (nearly),
so that none sends much more than twice the data in an all-reduce. Up and down are one pipeline.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

import numpy as np

from simcoll.estimator.flow.layout import HostLayout
from simcoll.estimator.flow.paths import Integers
from simcoll.estimator.flow.schedule import Schedule, TransferStep, powers, together


def all_reduce(layout: HostLayout, size: float, root: int) -> Schedule:
    """Up the trees to their roots and down again."""

    def both(parent: Integers, part: float, tree: Hashable) -> list[TransferStep]:
        return [up(parent, part, tree), down(parent, part, tree, int(heights(parent).max()))]

    return _of_trees(layout, size, lambda *tree: _spanning(layout, *tree), both)


def broadcast(layout: HostLayout, size: float, root: int) -> Schedule:
    """The root feeds both trees over the other hosts."""
    return _of_trees(layout, size, lambda *tree: _rooted(layout, root, *tree), lambda *part: [down(*part)])


def reduce(layout: HostLayout, size: float, root: int) -> Schedule:
    """The way of a broadcast, backwards."""
    return _of_trees(layout, size, lambda *tree: _rooted(layout, root, *tree), lambda *part: [up(*part)])


def _of_trees(
    layout: HostLayout,
    size: float,
    parents: Callable[[int, int], Integers],
    steps: Callable[[Integers, float, Hashable], list[TransferStep]],
) -> Schedule:
    """Both trees of each channel with a part of the data each, as one pipeline."""
    channels = max(len(host) for host in _hosts(layout))
    trees = [(channel, tree) for channel in range(channels) for tree in (0, 1)]
    return (pipeline([step for tree in trees for step in steps(parents(*tree), size / len(trees), tree)]),)


def _hosts(layout: HostLayout) -> list[Integers]:
    """Hosts, or the ranks one by one where they are all on one."""
    if len(layout.groups) > 1:
        return list(layout.groups)
    return [np.array([place]) for place in layout.groups[0]]


def double_tree(nodes: int, tree: int) -> Integers:
    """The parent of each node in the first or second tree, -1 for its root.

    Odd places of the first tree are leaves; the second is the first with its places mirrored, or shifted where the
    number of nodes is odd.
    """
    place = np.arange(nodes)
    bit = place & -place
    parent = (place ^ bit) | (bit << 1)
    parent = np.where(parent < nodes, parent, place ^ bit)
    parent[0] = -1
    if tree == 0:
        return parent
    moved = (nodes - 1 - place) if nodes % 2 == 0 else (place + 1) % nodes
    second = np.full(nodes, -1, np.int64)
    second[moved] = np.where(parent < 0, -1, moved[parent])
    return second


def _spanning(layout: HostLayout, channel: int, tree: int) -> Integers:
    """The parent of each rank: the tree joins the hosts' heads in this channel, a chain the ranks of each host."""
    hosts = _hosts(layout)
    chains = [np.roll(host, -(channel % len(host))) for host in hosts]
    heads = np.array([each[0] for each in chains])
    parent = np.full(layout.size, -1, np.int64)
    above = double_tree(len(heads), tree)
    parent[heads] = np.where(above < 0, -1, heads[above])
    for each in chains:
        parent[each[1:]] = each[:-1]
    return parent


def _rooted(layout: HostLayout, root: int, channel: int, tree: int) -> Integers:
    """The same with a given root, which gives to its host's head in this channel, and that to the other hosts' tree."""
    chains = [np.roll(host, -(channel % len(host))) for host in _hosts(layout)]
    own = next(each for each in chains if root in each)
    heads = np.array([each[0] for each in chains if each is not own], np.int64)
    parent = np.full(layout.size, -1, np.int64)
    if len(heads):
        above = double_tree(len(heads), tree)
        parent[heads] = np.where(above < 0, own[0], heads[above])
    for each in chains:
        line = np.concatenate([[root], each[each != root]]) if each is own else each
        parent[line[1:]] = line[:-1]
    return parent


def up(parent: Integers, size: float, tree: Hashable) -> TransferStep:
    """Towards the root, each rank when its children have given."""
    child = np.flatnonzero(parent >= 0)
    return piped(child, parent[child], size, tree, heights(parent)[child])


def down(parent: Integers, size: float, tree: Hashable, after: int = 0) -> TransferStep:
    """Away from the root, ``after`` so many rounds."""
    child = np.flatnonzero(parent >= 0)
    return piped(parent[child], child, size, tree, depths(parent)[child] - 1 + after)


def piped(sources: Integers, targets: Integers, size: float, block: Hashable, stage: int | Integers) -> TransferStep:
    """Transfers of one block, chunk after chunk, each at its stage of the pipeline or all at the same one."""
    stages = np.broadcast_to(np.asarray(stage, np.int64), sources.shape)
    return TransferStep(
        sources,
        targets,
        np.full(len(sources), size),
        lambda time: [[(block, time)]] * len(sources),
        1 + int(stages.max(initial=0)),
        stages,
    )


def pipeline(parts: list[TransferStep]) -> TransferStep:
    """Steps with stages as one: it lasts as long as the one of most stages."""
    rounds = max(step.rounds for step in parts)
    return together([TransferStep(s.sources, s.targets, s.sizes, s.carried, rounds, s.stages) for s in parts])


def depths(parent: Integers) -> Integers:
    """Returns the number of links above each node."""
    found, above = np.zeros(len(parent), np.int64), parent
    while (above >= 0).any():
        found += above >= 0
        above = np.where(above >= 0, parent[above], -1)
    return found


def heights(parent: Integers) -> Integers:
    """Returns the number of links of the longest path down from each node."""
    deep = depths(parent)
    found = np.zeros(len(parent), np.int64)
    for level in range(int(deep.max()), 0, -1):
        child = np.flatnonzero(deep == level)
        np.maximum.at(found, parent[child], found[child] + 1)
    return found


def gather(layout: HostLayout, size: float, root: int) -> Schedule:
    """A binomial tree: in step k, the blocks of 2^k ranks go to one."""
    return tuple(_binomial(layout.size, size, root, distance, False) for distance in powers(layout.size))


def scatter(layout: HostLayout, size: float, root: int) -> Schedule:
    """The way of a gather, backwards."""
    return tuple(_binomial(layout.size, size, root, distance, True) for distance in reversed(powers(layout.size)))


def _binomial(count: int, size: float, root: int, distance: int, away: bool) -> TransferStep:
    far = np.arange(distance, count, 2 * distance)
    held = np.minimum(distance, count - far)
    outer, inner = (far + root) % count, (far - distance + root) % count
    return TransferStep(
        inner if away else outer,
        outer if away else inner,
        held * (size / count),
        lambda _: [
            [((first + place + root) % count,) for place in range(blocks)]
            for first, blocks in zip(far.tolist(), held.tolist(), strict=True)
        ],
    )
