"""Prices each step of a schedule on a topology: its duration, and the bytes on each link.

A step lasts until its slowest transfer has arrived: its latency over all hops, and the end of its bytes at its fair
share. Parts that do not depend on the size are computed once for a step and kept with the topology.

:func:`fair_rates` computes max-min fair shares of links by progressive filling (Bertsekas and Gallager, Data Networks):
all transfers' rates rise alike until a link is full; those that cross it keep their rate, and the others rise on.
:func:`sampled` makes a sum over many alike distances from a few of them: it interpolates where the cost is straight,
and halves the interval elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from simcoll.core.estimate import Overheads
from simcoll.estimator.flow.paths import Floats, Integers
from simcoll.estimator.flow.routes import Router, Routes
from simcoll.estimator.flow.schedule import Schedule, Shifts, TransferStep, steps
from simcoll.topology.graph import LINKS

Cost = Callable[[int], "tuple[float, float]"]


def sampled(count: int, period: int, cost: Cost) -> dict[int, float]:
    """Sampled distances of 1 to ``count - 1``, each with its weight: the number of distances that it stands for.

    Distances that leave the same rest by ``period`` are a series. The first and last three of each are taken; the
    interval between two taken ones is a straight line if its middle is on it, and else halved.
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
    """Give the weight of the distances between two to those two, and to as many others as it takes."""
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


_FULL = 1e-9
"""A link is full, and a transfer done, within this fraction."""

_SHARES = 200
"""After so many changes of the transfers under way, those that are left keep their rates."""


def fair_rates(routes: Routes, transfers: int, bandwidth: Floats) -> Floats:
    """Each transfer's rate in bytes/s; infinite for one that uses no link."""
    links, link = np.unique(routes.link, return_inverse=True)
    left, rising = bandwidth[links], np.ones(transfers, bool)
    rates, level = np.full(transfers, np.inf), 0.0
    transfer, share = routes.transfer, routes.share
    while len(transfer):
        used = np.bincount(link, share, len(links))
        room = np.divide(left, used, out=np.full(len(links), np.inf), where=used > 0)
        rise = room.min()
        if rise == np.inf:  # no link holds back what is left
            break
        level += rise
        left = left - rise * used
        stopped = np.unique(transfer[(room <= rise * (1 + _FULL))[link]])
        rates[stopped] = level
        rising[stopped] = False
        on = rising[transfer]
        transfer, link, share = transfer[on], link[on], share[on]
    return rates


def loads(routes: Routes, sizes: Floats, links: int) -> Floats:
    """The bytes on each link."""
    found: Floats = np.bincount(routes.link, routes.share * sizes[routes.transfer], links).astype(float)
    return found


def ends(routes: Routes, sizes: Floats, bandwidth: Floats) -> Floats:
    """The time in seconds at which the last byte of each transfer is out, if all begin at once and share fairly.

    When one ends, the others share anew, unless that cannot help: the busiest link is busy until the last end.
    """
    rates = fair_rates(routes, len(sizes), bandwidth)
    found: Floats = sizes / rates
    least = float((loads(routes, sizes, len(bandwidth)) / bandwidth).max(initial=0.0))
    if found.max(initial=0.0) <= least * (1 + _FULL):
        return found
    return _shared_anew(routes, sizes.astype(float), bandwidth, rates)


def _shared_anew(routes: Routes, left: Floats, bandwidth: Floats, rates: Floats) -> Floats:
    found, now = np.zeros(len(left)), 0.0
    running = np.flatnonzero((left > 0) & np.isfinite(rates))
    for _ in range(_SHARES):
        if not len(running):
            break
        need = left[running] / rates[running]
        first = need.min()
        now += first
        done = need <= first * (1 + _FULL)
        found[running[done]] = now
        left[running] = left[running] - first * rates[running]
        running = running[~done]
        rates[running] = fair_rates(_only(routes, running, len(left)), len(left), bandwidth)[running]
    found[running] = now + left[running] / rates[running]
    return found


def _only(routes: Routes, transfers: Integers, count: int) -> Routes:
    running = np.zeros(count, bool)
    running[transfers] = True
    kept = running[routes.transfer]
    return Routes(routes.transfer[kept], routes.link[kept], routes.share[kept])


_WRITTEN_OUT = 64
"""Up to so many distances, shifts are priced one by one and those at once as one step; beyond, by their series."""

_WATCHED = 4096
"""Up to so many ranks, each link's load is watched to choose the distances: of more, those near by are a small part."""

_KEPT = 64
"""So many steps are kept for each topology."""

_CHUNKS = 1 << 20


@dataclass(frozen=True, slots=True, eq=False)
class Phase:
    """A step, or some alike, priced: seconds in all, of which ``latency`` is no sending, and bytes by link in all.

    ``step`` is None where every rank takes part in all of it.
    """

    seconds: float
    latency: float
    loads: Floats
    step: TransferStep | None = None

    @property
    def sending(self) -> float:
        """The seconds in which bytes are on their way."""
        return self.seconds - self.latency


@dataclass(frozen=True, slots=True, eq=False)
class _Alone:
    """A step whose largest transfer is one byte: each transfer's latency and the end of its bytes, the links' loads."""

    latency: Floats
    end: Floats
    loads: Floats

    def round(self, size: float) -> float:
        return float((self.latency + self.end * size).max(initial=0.0))


@dataclass(frozen=True, slots=True, eq=False)
class Prices:
    """Prices the steps of one group: ``nodes`` are the network's numbers of its endpoints."""

    router: Router
    nodes: Integers
    overheads: Overheads

    @property
    def bandwidth(self) -> Floats:
        """Bytes/s of each link, as far as the protocol gets them."""
        fabric, network = self.router.fabric, self.router.network
        part = np.array([self.overheads.efficiency.get(kind, 1.0) for kind in LINKS])
        found: Floats = (network.bandwidth * part[network.kind])[fabric.member] * fabric.width
        return found

    def phases(self, schedule: Schedule) -> Iterator[Phase]:
        """The schedule priced, step by step."""
        for part in schedule:
            if isinstance(part, TransferStep):
                yield self._step(part)
            elif part.count - 1 <= _WRITTEN_OUT:
                yield from (self._step(step) for step in steps((part,)))
            else:
                yield self._series(part)

    def _step(self, step: TransferStep) -> Phase:
        size = float(step.sizes.max(initial=0.0))
        alone = self._alone(step, size)
        if step.through:
            return _through(step, alone, size)
        if step.stages is not None:
            chunks = _chunks(step.depth, alone, size)
            step, size = step.split(chunks), size / chunks
        slowest = alone.round(size)
        sending = float(alone.end.max(initial=0.0)) * size
        rounds = step.rounds
        return Phase(rounds * slowest, rounds * (slowest - sending), alone.loads * (size * step.times), step)

    def _alone(self, step: TransferStep, size: float) -> _Alone:
        """Scaled to its largest transfer, so that it is the same for every size."""
        scaled = step.sizes / size if size else np.zeros(len(step.sizes))
        sources, targets = self.nodes[step.sources], self.nodes[step.targets]
        key = (sources.tobytes(), targets.tobytes(), np.round(scaled, 12).tobytes(), self._overheads)
        kept = self.router.priced
        if key not in kept:
            if len(kept) >= _KEPT:
                kept.pop(next(iter(kept)))
            kept[key] = self._priced(self.router.routes(sources, targets), scaled)
        found: _Alone = kept[key]
        return found

    @property
    def _overheads(self) -> Hashable:
        return tuple(self.overheads.step.items()), tuple(self.overheads.efficiency.items())

    def _priced(self, routes: Routes, sizes: Floats) -> _Alone:
        bandwidth = self.bandwidth
        return _Alone(
            self._latency(routes, len(sizes)), ends(routes, sizes, bandwidth), loads(routes, sizes, len(bandwidth))
        )

    def _latency(self, routes: Routes, count: int) -> Floats:
        """All hops', and the overhead of the kind of link on the way that has the largest."""
        network, member = self.router.network, self.router.fabric.member[routes.link]
        found: Floats = np.bincount(routes.transfer, routes.share * network.latency[member], count).astype(float)
        if self.overheads.step:
            added = np.array([self.overheads.step.get(kind, 0.0) for kind in LINKS])
            most = np.zeros(count)
            np.maximum.at(most, routes.transfer, added[network.kind[member]])
            found = found + most
        return found

    def _series(self, shifts: Shifts) -> Phase:
        """Shifts of many ranks: each series of alike distances from some of them, as far as it is a straight line."""
        first = shifts.step(1)
        pairs = (self.nodes[first.sources].tobytes(), self.nodes[first.targets].tobytes())
        key = (shifts.count, shifts.period, shifts.at_once, *pairs, self._overheads)
        size = float(first.sizes.max(initial=0.0))
        if key not in self.router.priced:
            self.router.priced[key] = self._sampled(shifts)
        taken: list[tuple[float, _Alone]] = self.router.priced[key]
        total = np.zeros(len(self.bandwidth))
        for weight, alone in taken:
            total += (weight * size) * alone.loads
        if shifts.at_once:
            latency = max(float(alone.latency.max(initial=0.0)) for _, alone in taken)
            return Phase(latency + float((total / self.bandwidth).max(initial=0.0)), latency, total)
        seconds = sum(weight * alone.round(size) for weight, alone in taken)
        sending = sum(weight * float(alone.end.max(initial=0.0)) * size for weight, alone in taken)
        return Phase(seconds, seconds - sending, total)

    def _sampled(self, shifts: Shifts) -> list[tuple[float, _Alone]]:
        """Steps, and the number of distances that each stands for."""
        alone: dict[int, _Alone] = {}
        watched = shifts.at_once and shifts.count <= _WATCHED
        weights = _marks(len(self.bandwidth)) / self.bandwidth

        def cost(distance: int) -> tuple[float, float]:
            if distance not in alone:
                step = shifts.step(distance)
                routes = self.router.routes(self.nodes[step.sources], self.nodes[step.targets])
                alone[distance] = self._priced(routes, np.ones(len(step.sources)))
            slowest = float(alone[distance].end.max())
            # Concurrent shifts end with the sum of their loads, which may differ where the slowest transfers do not.
            busy = float(weights @ alone[distance].loads) if watched else slowest
            return busy, float(alone[distance].latency.max())

        taken = sampled(shifts.count, shifts.period, cost)
        for distance in taken:
            cost(distance)
        return [(weight, alone[distance]) for distance, weight in taken.items()]


def _marks(links: int) -> Floats:
    """A factor for each link, no two alike, so that other loads have another sum."""
    return np.asarray(1.0 + (np.arange(links) * ((math.sqrt(5) - 1) / 2)) % 1.0, np.float64)


def _through(step: TransferStep, alone: _Alone, size: float) -> Phase:
    """Bytes go on while others come, so that each stage adds its latency once."""
    stages = np.zeros(len(step.sources), int) if step.stages is None else step.stages
    latency = sum(float(alone.latency[stages == stage].max()) for stage in np.unique(stages))
    return Phase(latency + float(alone.end.max(initial=0.0)) * size, latency, alone.loads * size, step)


def _chunks(depth: int, alone: _Alone, size: float) -> int:
    """Returns the number of chunks, of at least a byte each, with which the pipeline is fastest."""
    most = int(min(max(size, 1.0), _CHUNKS))
    waiting, sending = float(alone.latency.max(initial=0.0)), float(alone.end.max(initial=0.0)) * size
    best = math.sqrt(depth * sending / waiting) if waiting else math.inf
    tried = {1, *(max(1, min(most, int(min(best, most)) + more)) for more in (0, 1))}
    return min(tried, key=lambda chunks: (depth + chunks) * alone.round(size / chunks))
