"""When overlapping collectives end: streams run side by side and share the links that they are held up by."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from math import inf


@dataclass(slots=True, eq=False)
class Transfer:
    """One call on a stream.

    ``remaining`` are the seconds that it still takes when it is alone; ``links`` names what holds it up (none: nothing
    that others use) and ``utilisation`` which part of the time of each it takes when it is alone. ``start`` and ``end``
    are seconds of the timeline, None until they have come.
    """

    remaining: float
    links: tuple[Hashable, ...] = ()
    utilisation: float = 0.0
    start: float | None = None
    end: float | None = None


@dataclass(slots=True)
class Timeline:
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
            # What ends here ends exactly, whatever was rounded.
            one.remaining = 0.0 if one.remaining / speed <= step else one.remaining - step * speed
        self._clock += step
        for waiting in self._streams.values():
            if waiting and waiting[0].remaining == 0.0 and waiting[0].start is not None:
                waiting.popleft().end = self._clock


def _speeds(running: Sequence[Transfer]) -> list[float]:
    """How fast each goes, 1 being alone: a link that is asked for more than it has slows its users alike."""
    asked: defaultdict[Hashable, float] = defaultdict(float)
    for one in running:
        for link in one.links:
            asked[link] += one.utilisation
    return [1.0 / max([1.0, *(asked[link] for link in one.links)]) for one in running]
