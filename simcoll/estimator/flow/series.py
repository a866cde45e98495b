"""A sum over many alike things from a few of them: by straight lines where it is straight, and halving elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np

Cost = Callable[[int], "tuple[float, float]"]


def sampled(count: int, period: int, cost: Cost) -> dict[int, float]:
    """Some of the distances 1 to ``count - 1``, and for how many each stands.

    Distances that leave the same rest by ``period`` are a series. The first and last three of each are taken, and what
    is between two taken ones is a straight line if its middle is on it, and else halved.
    """
    weights: dict[int, float] = {}
    for rest in range(1, min(period, count - 1) + 1):
        series = range(rest, count, period)
        places = {place % len(series) for place in (0, 1, 2, -3, -2, -1) if -len(series) <= place < len(series)}
        taken = [series[place] for place in sorted(places)]
        weights.update(dict.fromkeys(taken, 1.0))
        for low, high in pairwise(taken):
            _between(low, high, period, cost, weights)
    return weights


def _between(low: int, high: int, period: int, cost: Cost, weights: dict[int, float]) -> None:
    """Give the weight of what is between two distances to those, and to others as far as it takes."""
    apart = (high - low) // period
    if apart < 2:
        return
    middle = low + apart // 2 * period
    weights[middle] = 1.0
    if _straight(low, middle, high, cost):
        for one, other in ((low, middle), (middle, high)):
            half = ((other - one) // period - 1) / 2
            weights[one] += half
            weights[other] += half
        return
    _between(low, middle, period, cost, weights)
    _between(middle, high, period, cost, weights)


def _straight(low: int, middle: int, high: int, cost: Cost) -> bool:
    part = (middle - low) / (high - low)
    expected = np.add(np.multiply(cost(low), 1 - part), np.multiply(cost(high), part))
    return bool(np.allclose(cost(middle), expected, rtol=1e-9, atol=0))
