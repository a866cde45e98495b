"""The recording of a rank that is a thread: a session, a box in memory, a clock that stops while others run.

Random numbers of ranks that are threads: each has generators of its own, as a process has.

Ranks that draw common values from the same seed (the sizes that each sends, a common sample) would otherwise share one
stream.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch

from simcoll.backends.engine.parking import ParkingPlace, WaitTimeoutError
from simcoll.backends.engine.tickets import Ticket, was_ended_by_others
from simcoll.backends.engine.turns import Turns
from simcoll.backends.engine.virtual_time import VirtualTime
from simcoll.backends.engine.world import World
from simcoll.blackbox.memory_box import MemoryBox
from simcoll.core.patches import Patches
from simcoll.core.rank_local import RankLocal, acting_rank
from simcoll.core.record import Group, Source
from simcoll.recorder.recorder import Recorder
from simcoll.recorder.session import Session
from simcoll.recorder.source import current_source


class SwitchedGenerator:
    """Switches torch's default generator, of which C++ has only one, to the state of the rank that runs."""

    def __init__(self) -> None:
        self._process = torch.default_generator.get_state()
        self._states: dict[int, torch.Tensor] = {}
        self._owner: int | None = None

    def switch_to(self, rank: int) -> None:
        """Set the state of a rank that goes on."""
        if rank == self._owner:
            return
        if self._owner is not None:
            self._states[self._owner] = torch.default_generator.get_state()
        torch.default_generator.set_state(self._states.get(rank, self._process))
        self._owner = rank

    def restore(self) -> None:
        """Set the process's own state: the process goes on as if the ranks had drawn nothing."""
        torch.default_generator.set_state(self._process)


def replace_generators(patches: Patches, seed: int) -> None:
    """Let ``random`` and ``numpy.random`` draw from generators of the rank.

    Like a process, each rank begins with a seed of its own, which follows from ``seed`` and the rank.
    """
    python = RankLocal(lambda: random.Random(f"{seed} {_rank()}"))  # noqa: S311  # a program's own numbers
    numpy = RankLocal(lambda: np.random.RandomState(abs(seed) * 65537 % 2**31 + _rank()))
    of_python: Any = random
    _replace_functions(patches, random, of_python._inst, python)
    _replace_functions(patches, np.random, np.random.mtrand._rand, numpy)


def _rank() -> int:
    rank = acting_rank()
    return 0 if rank is None else rank.rank


def _replace_functions(patches: Patches, module: Any, generator: object, own: RankLocal[Any]) -> None:
    """Replace a module's functions that are methods of its one generator."""
    for name, function in list(vars(module).items()):
        bound = getattr(function, "__self__", None) is generator or (module is np.random and name == "seed")
        if bound and not name.startswith("_"):
            patches.replace(module, name, _of_rank(function, own))


def _of_rank(function: Callable[..., Any], own: RankLocal[Any]) -> Callable[..., Any]:
    name = function.__name__

    def draw(*args: Any, **kwargs: Any) -> Any:
        generator = function if acting_rank() is None else getattr(own.here, name)
        return generator(*args, **kwargs)

    return draw


MODE = "detail"
"""The mode of the records: every call is compared when it runs."""


class ThreadClocks(VirtualTime):
    """A clock for each rank that runs while a thread of the rank does: other ranks' turns take no time."""

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
        """Stop the clock for a thread of the rank that waits."""
        with self._lock:
            self._now[rank] = self.now(rank)
            self._away[rank] += 1

    def go(self, rank: int) -> None:
        """Start the clock again."""
        with self._lock:
            self._away[rank] -= 1
            self._since[rank] = time.perf_counter()

    @property
    def latest(self) -> float:
        """The latest time of all ranks."""
        return max(map(self.now, range(len(self._now))))

    def call(self, rank: int) -> float:
        """The time of a call."""
        return self.now(rank)

    def reach(self, rank: int, seconds: float) -> None:
        """Advance a rank to a time that it has waited for."""
        with self._lock:
            self._now[rank] += max(0.0, seconds - self.now(rank))

    def run(self, met: Sequence[Ticket]) -> None:
        """Set the times of a collective, which runs when its last rank has come, and takes no time."""
        ended = max(ticket.posted for ticket in met)
        for ticket in met:
            ticket.began = ticket.ended = ended


class RankSession(Session):
    """The session of one rank, which records all groups in one box."""

    def __init__(self, rank: int, world_size: int, clock: ThreadClocks, began_ns: int, values: str) -> None:
        super().__init__(MODE, Path(), values)
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


class RankWaits:
    """The context of a rank's waits: its clock stops, and an exception because of other ranks ends its record."""

    def __init__(
        self, rank: int, world: World, clock: ThreadClocks, box: MemoryBox, numbers: SwitchedGenerator
    ) -> None:
        self.ended: BaseException | None = None
        """The exception that ended the rank because others were stuck or failed, as a launcher would have ended it."""
        self.hangs_at: Source | None = None
        """The line at which its program waits for something other than a call."""
        self._rank, self._world, self._clock, self._box = rank, world, clock, box
        self._numbers = numbers
        self._pauses: set[ParkingPlace] = set()

    def __call__(self) -> RankWaits:
        """The context of one wait."""
        return self

    def __enter__(self) -> RankWaits:
        self._clock.stop(self._rank)
        return self

    def pause(self, turns: Turns, place: ParkingPlace, seconds: float | None) -> None:
        """Wait for something other than a call; raises what :meth:`Turns.pass_time` raises."""
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
        """End the rank's pauses, since another rank has failed."""
        with turns.lock:
            for place in self._pauses:
                turns.wake(place)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._clock.go(self._rank)
        self._numbers.switch_to(self._rank)
        if error is not None and was_ended_by_others(error) and not isinstance(error, WaitTimeoutError):
            self.ended = error
            self._box.close()
