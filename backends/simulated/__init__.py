"""Ranks in one process, on numpy arrays: ``simcoll.simulate``.

Each rank's program runs on a thread of its own, one at a time (:mod:`simcoll.backends.engine.turns`). Its calls are
recorded like those of a real rank, run as the table defines them (:mod:`simcoll.backends.engine.world`), and are judged
like those of a real job.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, TypeVar

import networkx as nx
import numpy as np

from simcoll.backends.engine.exit_detection import detected_exits, missing_event
from simcoll.backends.engine.outcome import Ending, Outcome, exception_event, exit_code, outcome_of
from simcoll.backends.engine.schedules import Choices, RecordedSchedule, choices_of
from simcoll.backends.engine.tickets import was_ended_by_others
from simcoll.backends.engine.turns import PATIENCE, Turns
from simcoll.backends.engine.virtual_time import VirtualTime, nanoseconds
from simcoll.backends.engine.world import World
from simcoll.backends.simulated.object_calls import ObjectComm
from simcoll.backends.simulated.requests import Rank, raising_line
from simcoll.core.record import Group
from simcoll.core.trace import Stall
from simcoll.errors import ConfigurationError
from simcoll.values.choice import values_wanted

T = TypeVar("T")

MOST_RANKS = 16384
"""The most ranks: each has a thread of this process."""


def simulate(
    program: Callable[[ObjectComm], T],
    world_size: int,
    topology: nx.DiGraph[Any] | None = None,
    seed: int = 0,
    *,
    schedule: str | None = None,
    sends: str = "synchronous",
    choices: Choices | None = None,
    timeout: float | None = None,
    values: str | None = None,
) -> Outcome[T]:
    """Run ``program(comm)`` on every rank of a simulated world to its end, and judge the ranks' calls.

    The order in which ranks go on comes from ``seed`` (0: first come, first served), or from a ``schedule`` that an
    earlier outcome or exploration gave. ``topology`` makes calls take virtual time. ``sends`` is the time at which a
    send ends: ``synchronous`` when its receive is posted, as with Gloo and NCCL, ``buffered`` at once, ``either`` as
    the schedule decides. ``values`` selects the calls whose values are checked: ``off``, ``sample``, ``all`` (default:
    the environment's SIMCOLL_VALUES, else ``off``). An exception of a program is in the outcome and is not raised here.
    Raises :class:`~simcoll.errors.ConfigurationError` for an invalid program, world size, schedule or topology, and
    TimeoutError if ranks have not ended after ``timeout`` seconds of real time, such as one that only computes.
    """
    _check(program, world_size)
    recorded = RecordedSchedule(choices or choices_of(seed, schedule))
    return _Run[T](world_size, topology, sends, recorded, values_wanted(values)).run(program, timeout)


def _check(program: object, world_size: object) -> None:
    whole = isinstance(world_size, (int, np.integer)) and not isinstance(world_size, bool)
    if not whole or not 1 <= world_size <= MOST_RANKS:  # type: ignore[operator]  # it is a number
        raise ConfigurationError(f"a simulated world has 1 to {MOST_RANKS} ranks, got {world_size!r:.40}")
    if not callable(program):
        raise ConfigurationError(f"a program is a function of the communicator, got {program!r:.80}")
    called = program.func if isinstance(program, partial) else program
    if inspect.iscoroutinefunction(called) or inspect.isasyncgenfunction(called) or inspect.isgeneratorfunction(called):
        raise ConfigurationError(
            f"{getattr(called, '__qualname__', called)} is a coroutine or a generator, which would not run:"
            " give a plain function; each rank has a thread of its own, and may block"
        )


class _Run(Generic[T]):
    """One run of a program on all ranks."""

    def __init__(
        self, size: int, topology: nx.DiGraph[Any] | None, sends: str, choices: RecordedSchedule, values: str
    ) -> None:
        self._choices = choices
        self._clock = VirtualTime(size, topology)
        self._turns = Turns(size, choices)
        self._world = World(size, self._turns, sends=sends, clock=self._clock, choices=choices)
        self._world.on_stuck = self._find_stuck
        self._group = Group("0", "default_pg", tuple(range(size)))
        self._ranks = [Rank(rank, self._world, values) for rank in range(size)]
        self._results: dict[int, T] = {}
        self._endings: dict[int, Ending] = {}
        self._stall: Stall | None = None

    def run(self, program: Callable[[ObjectComm], T], timeout: float | None) -> Outcome[T]:
        """Run the program on every rank, and judge the records."""
        self._turns.run(lambda rank: self._body(rank, program), timeout)
        traces = [rank.box.trace() for rank in self._ranks]
        return outcome_of(self._results, self._endings, traces, self._stall, self._choices, self._clock.latest)

    def _body(self, rank: int, program: Callable[[ObjectComm], T]) -> None:
        error: BaseException | None = None
        try:
            self._results[rank] = program(ObjectComm(self._ranks[rank], self._group))
        except BaseException as raised:  # whatever ends one rank ends the others
            error = raised if was_ended_by_others(raised) or exit_code(raised) else None
        self._end(rank, error)

    def _end(self, rank: int, error: BaseException | None) -> None:
        ranked = self._ranks[rank]
        self._world.run_complete()
        ending = Ending(error, nanoseconds(self._clock.call(rank)))
        self._endings[rank] = ending
        ranked.flights.look_after(last=True)
        # An interpreter that exits by sys.exit ends in the ordinary way, whatever its exit code.
        if error is None or (isinstance(error, SystemExit) and not ending.stopped):
            ranked.box.event("exit")
        elif not ending.stopped:
            ranked.box.event("exception", **exception_event(error, raising_line(error)))
        if error is not None and not ending.stopped:
            self._world.fail(rank, error)

    def _find_stuck(self) -> None:
        """Record the stall: no rank can go on, and all that ranks do from here on is caused by their StuckError."""
        if self._stall is not None:
            return
        now = self._clock.latest
        self._note_missing()
        hanging = {rank.rank: rank.hangs_at for rank in self._ranks if rank.hangs_at is not None}
        polling = {rank: self._ranks[rank].polls_at for rank in self._world.polling}
        hanging |= {rank: line for rank, line in polling.items() if line is not None}
        waiting = frozenset(rank.rank for rank in self._ranks if rank.rank not in self._endings)
        self._stall = Stall(
            nanoseconds(now),
            nanoseconds(now + PATIENCE),
            places=hanging,
            # Where no rank waits, the polling ones are those that are blocked.
            blocked=waiting - hanging.keys() or frozenset(polling),
            busy=frozenset(hanging),
        )
        for rank in waiting:
            self._clock.reach(rank, now + 2 * PATIENCE)

    def _note_missing(self) -> None:
        """Record the missing ranks on the ranks that detect that they have ended."""
        ended = {rank for rank, ending in self._endings.items() if ending.error is None}
        for ticket, absent in detected_exits(self._world, ended):
            self._ranks[ticket.global_rank].event("missing", **missing_event(ticket, absent, ticket.line))
