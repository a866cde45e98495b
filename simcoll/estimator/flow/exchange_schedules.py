"""Exchanges in log2(N) steps (recursive halving and doubling, Bruck, PAT), in N-1 steps (pairwise) or in one (direct).

Ranks are taken in the order of their hosts, and near ranks exchange most: in step k partners are 2^k apart.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

import numpy as np

from simcoll.estimator.flow.layout import HostLayout
from simcoll.estimator.flow.paths import Integers
from simcoll.estimator.flow.schedule import Schedule, Shifts, TransferStep, powers


def _order(layout: HostLayout) -> Integers:
    return np.concatenate(layout.groups)


def _turned(
    order: Integers, distance: int, size: float, count: int, blocks: Callable[[int], Sequence[tuple[int, ...]]]
) -> TransferStep:
    """Each place sends ``count`` of as many blocks as there are ranks ``distance`` places on; ``blocks`` names them."""
    return TransferStep(
        order,
        np.roll(order, -distance),
        np.full(len(order), count * size / len(order)),
        lambda _: [blocks(place) for place in range(len(order))],
    )


def bruck_all_gather(layout: HostLayout, size: float, root: int) -> Schedule:
    """In step k a rank gives the up to 2^k blocks that it has to the one 2^k places before it (Bruck et al.)."""
    order, count = _order(layout), layout.size

    def step(distance: int) -> TransferStep:
        held = min(distance, count - distance)
        return _turned(order, -distance, size, held, lambda p: [(int(order[(p + j) % count]),) for j in range(held)])

    return tuple(step(distance) for distance in powers(count))


def bruck_all_to_all(layout: HostLayout, size: float, root: int) -> Schedule:
    """In step k each block goes 2^k places on whose way has that bit (Bruck et al.)."""
    order, count = _order(layout), layout.size

    def step(distance: int) -> TransferStep:
        ways = [way for way in range(count) if way & distance]
        low = distance - 1

        def block(place: int, way: int) -> tuple[int, int]:
            source = (place - (way & low)) % count
            return int(order[source]), int(order[(source + way) % count])

        return _turned(order, distance, size, len(ways), lambda place: [block(place, way) for way in ways])

    return tuple(step(distance) for distance in powers(count))


def pat_all_gather(layout: HostLayout, size: float, root: int) -> Schedule:
    """Parallel aggregated trees (NCCL's PAT, all blocks of a step in one message): far first, one block, then more."""
    return tuple(_pat(layout, size, distance, 1) for distance in reversed(powers(layout.size)))


def pat_reduce_scatter(layout: HostLayout, size: float, root: int) -> Schedule:
    """The trees of PAT's all-gather, backwards."""
    return tuple(_pat(layout, size, distance, -1) for distance in powers(layout.size))


def _pat(layout: HostLayout, size: float, distance: int, way: int) -> TransferStep:
    """A step of the trees, ``way`` 1 from their roots, -1 to them: a block is the same on both."""
    order, count = _order(layout), layout.size
    first = 0 if way > 0 else distance
    offsets = range(first, count - distance + first, 2 * distance)
    return _turned(
        order, way * distance, size, len(offsets), lambda p: [(int(order[(p - each) % count]),) for each in offsets]
    )


class _Halving:
    """Recursive halving over the largest power of two; of the first ranks, two each take part as one."""

    def __init__(self, layout: HostLayout) -> None:
        self.order, self.count = _order(layout), layout.size
        self.bits = layout.size.bit_length() - 1
        self.half = 1 << self.bits
        self.extra = layout.size - self.half
        self.even = self.order[0 : 2 * self.extra : 2]
        self.odd = self.order[1 : 2 * self.extra : 2]
        self.place = np.concatenate([self.odd, self.order[2 * self.extra :]])
        self.number = np.arange(self.half)

    def owners(self, number: int) -> list[int]:
        """The ranks whose blocks one of the halved belongs to."""
        own = [int(self.place[number])]
        return [int(self.even[number]), *own] if number < self.extra else own

    def weights(self, bit: int) -> Integers:
        """Returns the number of blocks that go to each partner in step ``bit``."""
        held = np.where(self.number < self.extra, 2, 1)
        found: Integers = held.reshape(-1, 2 << bit).sum(axis=0)
        return found

    def held(self, number: int, bit: int) -> list[int]:
        """Those that agree with ``number`` in the bits 0 to ``bit``."""
        span = 2 << bit
        return list(range(number % span, self.half, span))

    def fold(self, size: float, blocks: Sequence[tuple[int, ...]]) -> list[TransferStep]:
        if not self.extra:
            return []
        return [TransferStep(self.even, self.odd, np.full(self.extra, size), lambda _: [blocks] * self.extra)]


def halving_doubling_all_reduce(layout: HostLayout, size: float, root: int) -> Schedule:
    """Rabenseifner: halve and reduce, then double and gather; ranks beyond a power of two give and get everything."""
    it = _Halving(layout)
    every = [(number,) for number in range(it.half)]

    def step(bit: int, doubling: bool) -> TransferStep:
        partner = it.number ^ (1 << bit)
        return TransferStep(
            it.place,
            it.place[partner],
            np.full(it.half, size / (2 << bit)),
            lambda _: [[(each,) for each in it.held(n if doubling else n ^ (1 << bit), bit)] for n in range(it.half)],
        )

    after = [TransferStep(it.odd, it.even, s.sizes, s.carried) for s in it.fold(size, every)]
    halving = [step(bit, False) for bit in range(it.bits)]
    return (*it.fold(size, every), *halving, *(step(bit, True) for bit in reversed(range(it.bits))), *after)


def halving_doubling_reduce_scatter(layout: HostLayout, size: float, root: int) -> Schedule:
    """Recursive halving; where two ranks take part as one, it gives the other its block at the end."""
    it = _Halving(layout)
    part = size / it.count

    def step(bit: int) -> TransferStep:
        partner = it.number ^ (1 << bit)
        return TransferStep(
            it.place,
            it.place[partner],
            it.weights(bit)[partner % (2 << bit)] * part,
            lambda _: [
                [(owner,) for each in it.held(n ^ (1 << bit), bit) for owner in it.owners(each)] for n in range(it.half)
            ],
        )

    every = [(int(rank),) for rank in it.order]
    last = [TransferStep(it.odd, it.even, np.full(it.extra, part), lambda _: [[(int(rank),)] for rank in it.even])]
    return (*it.fold(size, every), *(step(bit) for bit in range(it.bits)), *(last if it.extra else []))


def _shifts(layout: HostLayout, size: float, block: Callable[[int, int], Hashable], at_once: bool) -> Schedule:
    """For each distance, every rank sends a block to the one so many places on; ``block`` names it."""
    sources, part = np.arange(layout.size), np.full(layout.size, size / layout.size)

    def step(distance: int) -> TransferStep:
        targets = (sources + distance) % layout.size
        return TransferStep(
            sources,
            targets,
            part,
            lambda _: [[block(one, other)] for one, other in zip(sources.tolist(), targets.tolist(), strict=True)],
        )

    return (Shifts(layout.size, step, layout.width if layout.square else 1, at_once),)


def pairwise_all_to_all(layout: HostLayout, size: float, root: int) -> Schedule:
    """In step k each rank sends to the one k places on."""
    return _shifts(layout, size, lambda one, other: (one, other), False)


def direct_all_to_all(layout: HostLayout, size: float, root: int) -> Schedule:
    """Everybody sends to everybody at once."""
    return _shifts(layout, size, lambda one, other: (one, other), True)


def direct_all_gather(layout: HostLayout, size: float, root: int) -> Schedule:
    """Everybody sends its block to everybody at once."""
    return _shifts(layout, size, lambda one, other: (one,), True)


def direct_reduce_scatter(layout: HostLayout, size: float, root: int) -> Schedule:
    """Everybody sends to each rank that rank's block at once."""
    return _shifts(layout, size, lambda one, other: (other,), True)


def direct_all_reduce(layout: HostLayout, size: float, root: int) -> Schedule:
    """A direct reduce-scatter, then a direct all-gather."""
    return (*direct_reduce_scatter(layout, size, root), *direct_all_gather(layout, size, root))


def from_root(layout: HostLayout, size: float, root: int) -> Schedule:
    """The root sends everything to each rank at once."""
    return (_star(layout, size, root, True, None),)


def to_root(layout: HostLayout, size: float, root: int) -> Schedule:
    """Each rank sends everything to the root at once."""
    return (_star(layout, size, root, False, None),)


def direct_scatter(layout: HostLayout, size: float, root: int) -> Schedule:
    """The root sends each rank its block at once."""
    return (_star(layout, size / layout.size, root, True, "own"),)


def direct_gather(layout: HostLayout, size: float, root: int) -> Schedule:
    """Each rank sends its block to the root at once."""
    return (_star(layout, size / layout.size, root, False, "own"),)


def meet_at_root(layout: HostLayout, size: float, root: int) -> Schedule:
    """Everybody tells the root, then the root tells everybody."""
    return (*to_root(layout, size, root), *from_root(layout, size, root))


def _star(layout: HostLayout, size: float, root: int, away: bool, block: str | None) -> TransferStep:
    others = np.delete(np.arange(layout.size), root)
    centre = np.full(len(others), root)
    return TransferStep(
        centre if away else others,
        others if away else centre,
        np.full(len(others), size),
        lambda _: [[(int(each),) if block else ("all",)] for each in others],
    )


def message(layout: HostLayout, size: float, root: int) -> Schedule:
    """From the first of the ranks to the last."""
    return (TransferStep(np.array([0]), np.array([layout.size - 1]), np.array([float(size)]), lambda _: [[("all",)]]),)
