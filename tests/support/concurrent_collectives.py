"""The price of several collectives at once, whose links overlap and are shared: an oracle for the flow engine.

Each collective is at one step at a time. The latencies of a step's rounds come first, then its bytes. What all its
transfers do is one flow: they rise alike, and as none may be a round ahead of the others, a full link holds all of them
back. Links are shared so that each transfer on a full link gets as much (max-min, as by
`simcoll.estimator.flow.phases.fair_rates`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import networkx as nx
import numpy as np

from simcoll.core.estimate import Estimate, Overheads
from simcoll.errors import TopologyError
from simcoll.estimator.flow.engine import FlowPlan, estimate_of, plan
from simcoll.estimator.flow.paths import Floats
from simcoll.estimator.flow.phases import Phase

_DONE = 1e-12


@dataclass(frozen=True, slots=True)
class ConcurrentCollective:
    """A collective that begins at ``start`` seconds; its other fields are those of `flow.price`."""

    op: str
    size: int
    ranks: Sequence[int] | None = None
    algorithm: str | None = None
    start: float = 0.0
    root: int = 0


class _Running:
    """A collective under way: the phase that it is in, what of it is left, and until when it only waits."""

    def __init__(self, found: FlowPlan, start: float) -> None:
        self.found = found
        self._coming = list(found.phases)
        self.until = start + found.prices.overheads.launch
        self.left = 0.0
        self.phase: Phase | None = None
        self.end = self.until
        self.done = False

    def advance(self, now: float) -> bool:
        """Begin the next phase if this one is done; False when there is none."""
        while not self.done and self.until <= now + _DONE * max(1.0, now) and self.left <= _DONE:
            self.end = max(now, self.until)
            if not self._coming:
                self.done = True
                break
            self.phase = self._coming.pop(0)
            self.until = self.end + self.phase.latency
            self.left = 1.0 if self.phase.sending > 0 else 0.0
        return not self.done

    def sends(self, now: float) -> bool:
        """Whether its bytes are on their way."""
        return self.left > _DONE and self.until <= now + _DONE * max(1.0, now)


def price_together(
    flights: Sequence[ConcurrentCollective], graph: nx.DiGraph[Any], *, overheads: Overheads | None = None
) -> list[Estimate]:
    """What each of several collectives costs, from its own start to its end, while the others use the links too.

    Raises TopologyError as `flow.price` does.
    """
    if not all(flight.start >= 0 for flight in flights):
        raise TopologyError(f"starts are {[each.start for each in flights][:16]}, expected seconds of at least 0")
    running = [
        _Running(
            plan(each.op, each.size, graph, each.ranks, each.algorithm, root=each.root, overheads=overheads), each.start
        )
        for each in flights
    ]
    _run(running)
    calibrated = overheads is not None
    return [_priced(each, flight, calibrated) for each, flight in zip(running, flights, strict=True)]


def _priced(done: _Running, flight: ConcurrentCollective, calibrated: bool) -> Estimate:
    seconds = done.end - flight.start
    late = seconds - done.found.seconds
    late = late if late > _DONE * max(1.0, seconds) else 0.0
    return estimate_of(done.found, seconds, late, calibrated)


def _run(running: Sequence[_Running]) -> None:
    """From one event to the next: a collective begins to send, or ends a phase."""
    now = min((each.until for each in running), default=0.0)
    while True:
        active = [each for each in running if each.advance(now)]
        if not active:
            return
        sending = [each for each in active if each.sends(now)]
        speeds = _speeds(sending)
        events = [each.until - now for each in active if each not in sending]
        events += [each.left / speed for each, speed in zip(sending, speeds, strict=True)]
        step = max(min(events), 0.0)
        for each, speed in zip(sending, speeds, strict=True):
            each.left -= step * speed
        now += step


def _speeds(sending: Sequence[_Running]) -> list[float]:
    """What part of its phase each does in a second; alone, as much as makes it as long as its price."""
    if not sending:
        return []
    bandwidth = sending[0].found.prices.bandwidth
    most = np.array([1.0 / each.phase.sending for each in sending if each.phase is not None])
    load = np.stack([each.phase.loads for each in sending if each.phase is not None])
    largest = np.array([_largest(each.phase) for each in sending if each.phase is not None])
    used = np.flatnonzero((load * most[:, None]).sum(axis=0) > bandwidth * (1 + 1e-9))
    return [float(speed) for speed in _filled(load[:, used], bandwidth[used], most, largest)]


def _largest(phase: Phase) -> float:
    """The bytes of its largest transfer in the whole phase, by which its transfers are compared with others'."""
    if phase.step is None:
        return float(phase.loads.max())
    return float(phase.step.sizes.max()) * phase.step.times


def _filled(load: Floats, bandwidth: Floats, most: Floats, largest: Floats) -> Floats:
    """Progressive filling: all transfers' rates rise alike, until a link is full or one is as fast as alone."""
    speeds, rising = np.zeros(len(most)), np.ones(len(most), bool)
    while rising.any():
        grow = np.where(rising, 1.0 / largest, 0.0)
        used = grow @ load
        room = np.divide(bandwidth - speeds @ load, used, out=np.full(len(used), np.inf), where=used > 0)
        alone = np.divide(most - speeds, grow, out=np.full(len(most), np.inf), where=grow > 0)
        rise = min(room.min(initial=np.inf), alone.min())
        speeds = speeds + max(rise, 0.0) * grow
        full = room <= rise * (1 + 1e-9)
        rising &= ~((load[:, full] > 0).any(axis=1) | (alone <= rise * (1 + 1e-9)))
    return speeds
