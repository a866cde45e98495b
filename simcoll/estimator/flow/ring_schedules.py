"""Rings and chains (Patarasso and Yuan's ring; the pipelined chain that NCCL's broadcast and reduce are)."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

import numpy as np

from simcoll.estimator.flow.layout import HostLayout
from simcoll.estimator.flow.paths import Integers
from simcoll.estimator.flow.schedule import Schedule, TransferStep, together


def all_reduce(layout: HostLayout, size: float, root: int) -> Schedule:
    """Reduce-scatter, then all-gather, around the same rings: 2(N-1) rounds of one step."""
    return _rings(layout, size, 2 * (layout.size - 1), 0)


def all_gather(layout: HostLayout, size: float, root: int) -> Schedule:
    """Each rank passes on the block that came last, its own first: N-1 rounds."""
    return _rings(layout, size, layout.size - 1, 0)


def reduce_scatter(layout: HostLayout, size: float, root: int) -> Schedule:
    """Each rank adds its part of a block and passes it on, so that its own comes last: N-1 rounds."""
    return _rings(layout, size, layout.size - 1, 1)


def _rings(layout: HostLayout, size: float, rounds: int, behind: int) -> Schedule:
    orders = layout.orders()
    part = size / layout.size / len(orders)
    return (together([ring(order, part, rounds, behind, _owned(order, k)) for k, order in enumerate(orders)]),)


def _owned(order: Integers, channel: int) -> Callable[[int], list[tuple[int, int]]]:
    return lambda place: [(int(order[place]), channel)]


def ring(
    order: Integers, size: float, rounds: int, behind: int, blocks: Callable[[int], Sequence[tuple[Hashable, ...]]]
) -> TransferStep:
    """One ring: the p-th rank sends in round t the block of place p - t - ``behind``, ``size`` bytes."""
    count = len(order)
    return TransferStep(
        order,
        np.roll(order, -1),
        np.full(count, size),
        lambda time: [list(blocks((place - time - behind) % count)) for place in range(count)],
        rounds,
    )


def broadcast(layout: HostLayout, size: float, root: int) -> Schedule:
    """From the root along each channel's ring, chunk after chunk."""
    return _chains(layout, size, root, 0)


def reduce(layout: HostLayout, size: float, root: int) -> Schedule:
    """Along each channel's ring to the root, chunk after chunk."""
    return _chains(layout, size, root, 1)


def _chains(layout: HostLayout, size: float, root: int, behind: int) -> Schedule:
    """Each channel's ring, cut before the root or ``behind`` it."""
    orders = layout.orders()
    turned = [np.roll(order, -int(np.flatnonzero(order == root)[0]) - behind) for order in orders]
    return (together([chain(order, size / len(orders), channel) for channel, order in enumerate(turned)]),)


def chain(order: Integers, size: float, channel: int) -> TransferStep:
    """From the first to the last, each rank passing on the block that came last."""
    count = len(order) - 1
    return TransferStep(
        order[:-1],
        order[1:],
        np.full(count, size),
        lambda time: [[(channel, time)]] * count,
        count,
        np.arange(count),
    )
