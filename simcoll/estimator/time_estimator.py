"""``simcoll.time_estimator``: the time that a piece of a torch program would spend on communication, with nothing sent.

Every c10d call passes torch's dispatcher, whatever the backend and the caller (torch.distributed, functional
collectives, C++ such as DistributedDataParallel's reducer). A dispatch mode takes it there, prices it, and gives back a
Work whose ``wait`` moves the estimator's clock.

:class:`LinkTimeline` computes the ends of overlapping collectives: streams run side by side and share bottleneck links.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from math import inf
from typing import Any

import networkx as nx

from simcoll.core.estimate import Estimate
from simcoll.errors import ConfigurationError
from simcoll.estimator.estimate import estimate
from simcoll.spec.collectives import COLLECTIVES
from simcoll.spec.table import Kind
from simcoll.topology.graph import check
from simcoll.topology.graph import ranks as ranks_of
from simcoll.wrapper.dispatch_mode import Dispatched, Wait, dispatched


@dataclass(slots=True, eq=False)
class Transfer:
    """One call on a stream.

    ``remaining`` are the seconds that it still takes when it is alone; ``links`` names its bottlenecks (none: no link
    that others use) and ``utilisation`` the share of the time of each that it takes when it is alone. ``start`` and
    ``end`` are seconds of the timeline, None until they have come.
    """

    remaining: float
    links: tuple[Hashable, ...] = ()
    utilisation: float = 0.0
    start: float | None = None
    end: float | None = None


@dataclass(slots=True)
class LinkTimeline:
    """One rank's streams. Calls of a stream run one after the other; those of several share a link fairly.

    ``now`` is the time of the program, which moves on only where it waits.
    """

    now: float = 0.0
    _clock: float = 0.0
    _streams: defaultdict[Hashable, deque[Transfer]] = field(default_factory=lambda: defaultdict(deque))

    def submit(self, stream: Hashable, transfer: Transfer) -> Transfer:
        """Put a call at the end of a stream, now."""
        self._advance(self.now)
        self._streams[stream].append(transfer)
        return transfer

    def wait(self, transfer: Transfer) -> None:
        """Let the program go on when a call has ended."""
        while transfer.end is None:
            self._step(inf)
        self.now = max(self.now, transfer.end)

    def wait_all(self) -> None:
        """Let the program go on when all calls have ended."""
        while self._heads():
            self._step(inf)
        self.now = max(self.now, self._clock)

    def _heads(self) -> list[Transfer]:
        return [waiting[0] for waiting in self._streams.values() if waiting]

    def _advance(self, until: float) -> None:
        while self._heads() and self._clock < until:
            self._step(until)
        self._clock = max(self._clock, until)

    def _step(self, until: float) -> None:
        """Go on to the next end of a call, or to ``until``."""
        running = self._heads()
        speeds = _speeds(running)
        step = min(until - self._clock, *(one.remaining / speed for one, speed in zip(running, speeds, strict=True)))
        for one, speed in zip(running, speeds, strict=True):
            one.start = self._clock if one.start is None else one.start
            # A transfer that ends in this step ends with exactly 0 remaining, despite rounding.
            one.remaining = 0.0 if one.remaining / speed <= step else one.remaining - step * speed
        self._clock += step
        for waiting in self._streams.values():
            if waiting and waiting[0].remaining == 0.0 and waiting[0].start is not None:
                waiting.popleft().end = self._clock


def _speeds(running: Sequence[Transfer]) -> list[float]:
    """Returns each transfer's speed, 1 being alone: an oversubscribed link slows its users alike."""
    asked: defaultdict[Hashable, float] = defaultdict(float)
    for one in running:
        for link in one.links:
            asked[link] += one.utilisation
    return [1.0 / max([1.0, *(asked[link] for link in one.links)]) for one in running]


_MESSAGES = tuple(spec.name for spec in COLLECTIVES.values() if spec.kind is Kind.POINT_TO_POINT)


@dataclass(frozen=True, slots=True)
class PricedCall:
    """One call that was not sent: its estimate, and its predicted times, in seconds since the block began."""

    estimate: Estimate
    group: str
    transfer: Transfer


class TimeEstimator:
    """The costs of a `time_estimator` block's calls: the result of ``with simcoll.time_estimator(...) as it``."""

    def __init__(self, topology: nx.DiGraph[Any]) -> None:
        self._topology = topology
        self._size = len(ranks_of(topology))
        self._timeline = LinkTimeline()
        self._priced: list[PricedCall] = []
        self._sections: list[list[Dispatched]] = []

    @property
    def seconds(self) -> float:
        """Seconds from the block's begin until the last call so far has ended, overlapping ones counted once."""
        ahead = deepcopy(self._timeline)
        ahead.wait_all()
        return ahead.now

    @property
    def estimated_time(self) -> float:
        """The same in microseconds, as torch's ``_time_estimator`` gives it."""
        return self.seconds * 1e6

    @property
    def calls(self) -> tuple[PricedCall, ...]:
        """Every call, in the order in which they were made."""
        return tuple(self._priced)

    def finish(self) -> None:
        """The block ends when its last call has."""
        self._timeline.wait_all()

    def take(self, call: Dispatched) -> Wait:
        """A call is made: price it, alone or with its section; returns a function that waits for its end."""
        if self._sections:
            self._sections[-1].append(call)
            return _nothing
        return self._launch([call])

    def begin_section(self) -> None:
        """Begin a section, whose calls are launched together; sections of different groups may be nested."""
        self._sections.append([])

    def end_section(self) -> Wait:
        """Launch the calls made since; returns a function that waits for their end."""
        return self._launch(self._sections.pop() if self._sections else [])

    def _launch(self, calls: Sequence[Dispatched]) -> Wait:
        """Calls that are launched together: those that differ in nothing but their bytes go as one."""
        sizes: dict[tuple[str, tuple[int, ...], str], int] = {}
        for call in calls:
            key = (call.op, call.members, call.group)
            sizes[key] = sizes.get(key, 0) + call.bytes
        launched = [self._submit(*key, size) for key, size in sizes.items()]

        def wait() -> None:
            for transfer in launched:
                self._timeline.wait(transfer)

        return wait

    def _submit(self, op: str, members: tuple[int, ...], group: str, size: int) -> Transfer:
        """Collectives of a group run in order; messages in either direction, and with each peer, beside all else.

        A message keeps a link busy in its own direction, a collective in both.
        """
        if max(members) >= self._size:
            raise ConfigurationError(
                f"{op} among the ranks up to {max(members)}, and the topology has {self._size}: "
                f"give time_estimator one of at least {max(members) + 1} ranks"
            )
        priced = estimate(op, size, self._topology, ranks=members)
        message = COLLECTIVES[op].kind is Kind.POINT_TO_POINT
        transfer = Transfer(priced.seconds)
        if priced.bottleneck is not None:
            transfer.links = tuple((priced.bottleneck.link, way) for way in ((op,) if message else _MESSAGES))
            transfer.utilisation = priced.bottleneck.utilisation
        self._timeline.submit((group, op, members) if message else group, transfer)
        self._priced.append(PricedCall(priced, group, transfer))
        return transfer


def _nothing() -> None:
    """The wait for a call that is not launched yet: the program waits for its section's end."""


@contextmanager
def time_estimator(topology: nx.DiGraph[Any]) -> Iterator[TimeEstimator]:
    """Price the c10d calls of a block on a topology instead of making them; works with any backend, and needs no GPU.

    Rank i of the program is rank i of the topology, which must have at least as many. Nothing is sent: a reduction and
    a broadcast leave their tensors as they are, a gather finds this rank's own part in every place. Calls of one group
    run in order, those of several side by side, sharing the links that hold them up; the program's own computing takes
    no time. It is the block of its thread, with the backward passes that this one runs; other threads' calls are sent
    as usual. Raises TopologyError for a graph that is no topology, ConfigurationError for a call by a rank that it does
    not have.
    """
    check(topology)
    estimator = TimeEstimator(topology)
    try:
        with dispatched(estimator.take, estimator.begin_section, estimator.end_section):
            yield estimator
    finally:
        estimator.finish()
