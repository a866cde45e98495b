"""What a rank that is a thread records: its own session, a box in memory, a clock that stands while others run."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from simcoll.backends.engine.parking import LateError, ParkingPlace
from simcoll.backends.engine.tickets import Ticket, was_ended_by_others
from simcoll.backends.engine.turns import Turns
from simcoll.backends.engine.virtual_time import VirtualTime
from simcoll.backends.engine.world import World
from simcoll.backends.threaded.random_state import TurningGenerator
from simcoll.blackbox.memory_box import MemoryBox
from simcoll.core.record import Group, Source
from simcoll.recorder.recorder import Recorder
from simcoll.recorder.session import Session
from simcoll.recorder.source import current_source

MODE = "detail"
"""Every call is compared when it runs."""


class HeldTime(VirtualTime):
    """One clock a rank: it goes while a thread of the rank runs, so that nobody is late because others had the turn."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self._since = [0.0] * size
        self._away = [1] * size
        self._lock = threading.Lock()

    def now(self, rank: int) -> float:
        """The time of a rank (global)."""
        running = time.perf_counter() - self._since[rank] if self._away[rank] == 0 else 0.0
        return self._now[rank] + running

    def stop(self, rank: int) -> None:
        """A thread of the rank waits."""
        with self._lock:
            self._now[rank] = self.now(rank)
            self._away[rank] += 1

    def go(self, rank: int) -> None:
        """It goes on."""
        with self._lock:
            self._away[rank] -= 1
            self._since[rank] = time.perf_counter()

    @property
    def latest(self) -> float:
        """The time of the rank that is furthest."""
        return max(map(self.now, range(len(self._now))))

    def call(self, rank: int) -> float:
        """The moment of a call."""
        return self.now(rank)

    def reach(self, rank: int, seconds: float) -> None:
        """A rank has waited for something that ended then."""
        with self._lock:
            self._now[rank] += max(0.0, seconds - self.now(rank))

    def run(self, met: Sequence[Ticket]) -> None:
        """A collective runs when its last rank has come, and takes no time."""
        ended = max(ticket.posted for ticket in met)
        for ticket in met:
            ticket.began = ticket.ended = ended


class RankSession(Session):
    """The session of one rank: it records in one box, whatever groups there are."""

    def __init__(self, rank: int, world_size: int, clock: HeldTime, began_ns: int) -> None:
        super().__init__(MODE, Path())
        self.rank = rank
        self.box = MemoryBox(rank, world_size, MODE, lambda: began_ns + round(clock.now(rank) * 1e9))
        self._recorder = Recorder.into(self.box, rank)
        self._clock = clock

    def recorder(self, group: Group, group_rank: int) -> Recorder:
        """The rank's recorder."""
        return self._recorder

    def current_recorder(self) -> Recorder | None:
        """The rank's recorder."""
        return self._recorder

    def existing_recorder(self) -> Recorder | None:
        """The rank's recorder."""
        return self._recorder


class PendingWaits:
    """Surrounds the waits of a rank: its clock stands, and what ends it for the sake of others ends its record."""

    def __init__(self, rank: int, world: World, clock: HeldTime, box: MemoryBox, numbers: TurningGenerator) -> None:
        self.ended: BaseException | None = None
        """What the rank was ended with because others were stuck or failed, as its launcher would have ended it."""
        self.hangs_at: Source | None = None
        """The line at which its program waits for what is no call."""
        self._rank, self._world, self._clock, self._box = rank, world, clock, box
        self._numbers = numbers
        self._pauses: set[ParkingPlace] = set()

    def __call__(self) -> PendingWaits:
        """One wait more."""
        return self

    def __enter__(self) -> PendingWaits:
        self._clock.stop(self._rank)
        return self

    def pause(self, turns: Turns, place: ParkingPlace, seconds: float | None) -> None:
        """A wait of the program itself, for what is no call; raises what :meth:`Turns.pass_time` raises."""
        with self:
            before, self.hangs_at = self.hangs_at, current_source()
            self._pauses.add(place)
            try:
                turns.pass_time(place, seconds)
            finally:
                self._pauses.discard(place)
                self.hangs_at = before
            self._world.check_failure(self._rank)

    def end_pauses(self, turns: Turns) -> None:
        """Another rank has failed: this one is not to sleep on."""
        with turns.lock:
            for place in self._pauses:
                turns.wake(place)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._clock.go(self._rank)
        self._numbers.turn_to(self._rank)
        if error is not None and was_ended_by_others(error) and not isinstance(error, LateError):
            self.ended = error
            self._box.close()
