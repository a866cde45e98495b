"""Rings through GPUs that are joined by NVLinks without a switch (the cube mesh of V100 and MI-style boxes)."""

from __future__ import annotations

from functools import lru_cache
from itertools import permutations

import numpy as np

from simcoll.estimator.flow.paths import Floats, Integers

LARGEST = 8
"""Up to so many GPUs all rings are tried: 5,040."""

_ORDERS = 100


def mesh_rings(bandwidth: Floats) -> tuple[Integers, ...]:
    """Rings that together use the links' bandwidth, each as fast as the slowest link; none without such rings.

    ``bandwidth[i, j]`` is bytes/s from GPU i to GPU j, 0 where there is no link. One ring after the other is taken, in
    several orders that are the same every time; the most rings win.
    """
    if not 2 < len(bandwidth) <= LARGEST or not bandwidth.any():
        return ()
    return _rings(bandwidth.astype(float).tobytes(), len(bandwidth))


@lru_cache(maxsize=64)
def _rings(data: bytes, count: int) -> tuple[Integers, ...]:
    links = np.frombuffer(data).reshape(count, count)
    rings = np.array([(0, *order) for order in permutations(range(1, count))])
    rings = rings[(links[rings, np.roll(rings, -1, axis=1)] > 0).all(axis=1)]
    random, best = np.random.default_rng(0), list[Integers]()
    most = int((links.sum(axis=1) / links[links > 0].min()).min().round())
    for _ in range(_ORDERS):
        best = max(best, _taken(links, rings[random.permutation(len(rings))]), key=len)
        if len(best) == most:
            break
    return tuple(best)


def _taken(links: Floats, rings: Integers) -> list[Integers]:
    """One ring after the other: the first of those whose links have most left."""
    left, unit = links.copy(), links[links > 0].min()
    onward, found = np.roll(rings, -1, axis=1), list[Integers]()
    while len(rings):
        room = left[rings, onward]
        if room.min(axis=1).max() < unit * (1 - 1e-9):
            break
        chosen = int(room.min(axis=1).argmax())
        left[rings[chosen], onward[chosen]] -= unit
        found.append(rings[chosen])
    return found
