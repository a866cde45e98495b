"""Time as a function of size: one curve for each algorithm and protocol, and the lowest of them.

A curve rises strictly, and so does the lowest of several. The lowest one of each range of sizes is computed once, so
that pricing a size is a search among a few thresholds and one formula.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from simcoll.topology.placement import Link

Terms = tuple[tuple[str, float], ...]

_BANDWIDTH = {"intra": "bandwidth intra", "inter": "bandwidth inter"}

LARGEST = 1 << 60
"""Bytes: far beyond any buffer, and a whole number of them is still exact where it counts."""


@dataclass(frozen=True, slots=True)
class Curve:
    """Seconds by size, for one algorithm and protocol.

    ``launch`` and ``latency`` are seconds whatever the size. Bytes cost ``per_byte`` seconds each, divided by
    ``correction``, the share of the bandwidth that is left at log2(bytes / 64) = 0, 1, 2, ...; ``ideal`` of that is the
    bare link's share, the rest the protocol's. ``fill`` is the time that a pipeline needs to fill, of which a message
    that takes ``reach`` * ``fill`` waits for half. ``overlap``: see `simcoll.estimator.calibration.FabricConstants`.
    The part ``beside`` of the ideal seconds per byte is spent on the other kind of link, at another time. ``link`` is
    the link that sets the pace, with ``load`` of the bytes on it.
    """

    algorithm: str
    protocol: str | None
    launch: float
    latency: float
    per_byte: float
    ideal: float
    where: str
    link: Link | None
    load: float
    fill: float = 0.0
    reach: float = 1.0
    overlap: float = 0.0
    correction: tuple[float, ...] = ()
    beside: float = 0.0

    def seconds(self, size: int) -> float:
        """Seconds that ``size`` bytes take."""
        moving = self.per_byte * size
        if self.correction:
            moving /= self._left(size)
        seconds = self.launch + self.latency + moving
        if self.fill:
            seconds += self._filling(moving)
        if self.overlap:
            seconds -= self._hidden(moving)
        return seconds

    def terms(self, size: int) -> Terms:
        """The same as named seconds, without those of zero: written out, as this is done for every size."""
        moving = self.per_byte * size
        if self.correction:
            moving /= self._left(size)
        ideal = min(self.ideal * size, moving)
        named: Terms = (("launch", self.launch), ("latency", self.latency))
        if not self.launch:
            named = named[1:]
        if self.beside:
            named += self._apart(ideal, size)
        elif ideal:
            named += ((_BANDWIDTH[self.where], ideal),)
        if moving > ideal:
            named += (("protocol", moving - ideal),)
        if self.fill:
            named += (("pipeline", self._filling(moving)),)
        if self.overlap:
            named += (("overlap", -self._hidden(moving)),)
        return named

    def _apart(self, ideal: float, size: int) -> Terms:
        """Bandwidth terms where the links within domains and those between them are busy one after the other."""
        other = "intra" if self.where == "inter" else "inter"
        beside = min(self.beside * size, ideal)
        return ((_BANDWIDTH[self.where], ideal - beside), (_BANDWIDTH[other], beside))

    def achieved(self, size: int) -> float:
        """The share of the bare links' bandwidth that so many bytes get, filling the pipeline included."""
        ideal = self.ideal * size
        moving = self.seconds(size) - self.launch - self.latency
        return ideal / moving if 0 < ideal < moving else 1.0

    def _left(self, size: int) -> float:
        """NCCL's table has a step at each power of two; between them it is taken as straight, so that time rises."""
        table = self.correction
        if size <= 64:
            return table[0]
        place = math.log2(size / 64)
        index = int(place)
        if index >= len(table) - 1:
            return table[-1]
        return table[index] + (place - index) * (table[index + 1] - table[index])

    def _filling(self, moving: float) -> float:
        return self.fill * moving / (moving + self.reach * self.fill) if moving else 0.0

    def _hidden(self, moving: float) -> float:
        return self.overlap * (self.latency + moving - math.hypot(self.latency, moving))


@dataclass(frozen=True, slots=True)
class Lowest:
    """The lowest of several curves: ``curves[i]`` from ``starts[i]`` bytes on."""

    starts: tuple[int, ...]
    curves: tuple[Curve, ...]

    def at(self, size: int) -> Curve:
        """The curve that is lowest at a size."""
        return self.curves[bisect_right(self.starts, size) - 1]


def lowest(curves: Sequence[Curve]) -> Lowest:
    """The lowest of the curves, of those that are equal the first.

    Winners are compared at four sizes of each octave. Where two of them differ, the size from which the second is lower
    is found to the byte, so that the time rises there as well.
    """
    if len(curves) == 1:
        return Lowest((0,), (curves[0],))
    sizes = sorted({0, LARGEST, *(int(2 ** (quarter / 4)) for quarter in range(4 * 60))})
    starts, winners = [0], [_winner(curves, 0)]
    for low, high in pairwise(sizes):
        winner = _winner(curves, high)
        if winner is not winners[-1]:
            starts.append(_crossing(winners[-1], winner, low, high))
            winners.append(winner)
    return Lowest(tuple(starts), tuple(winners))


def _winner(curves: Sequence[Curve], size: int) -> Curve:
    return min(curves, key=lambda curve: curve.seconds(size))


def _crossing(before: Curve, after: Curve, low: int, high: int) -> int:
    """The least size between at which ``after`` is no higher than ``before``; ``before`` is lower below it."""
    while high - low > 1:
        middle = (low + high) // 2
        if after.seconds(middle) <= before.seconds(middle):
            high = middle
        else:
            low = middle
    return high
