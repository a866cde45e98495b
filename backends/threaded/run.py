"""Runs an unchanged torch program on ranks that are threads, one at a time, in a deterministic order.

Each rank has its own torch.distributed, environment and exit functions. Its calls are recorded by the process group of
real jobs, run in the engine of the backends in one process, and are judged as those of a real job.

A program's own pauses, for ranks that take turns: a rank that sleeps or waits for an event gives up its turn.

A sleep takes its full time on the clock of its rank, but at most a second of real time.
"""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Generic, TypeVar

from simcoll.backends.engine.exit_detection import detected_exits, missing_event
from simcoll.backends.engine.outcome import Ending, Outcome, outcome_of
from simcoll.backends.engine.parking import ParkingPlace, WaitTimeoutError
from simcoll.backends.engine.schedules import Choices, RecordedSchedule, choices_of
from simcoll.backends.engine.turns import PATIENCE, Turns
from simcoll.backends.engine.world import World
from simcoll.backends.gloo import GLOO
from simcoll.backends.threaded.c10d import TorchRank, of_thread, register_groups, torch_for_ranks, torch_ranks
from simcoll.backends.threaded.environment import exit_functions, join_own_threads, replace_environment
from simcoll.backends.threaded.session import (
    RankSession,
    RankWaits,
    SwitchedGenerator,
    ThreadClocks,
    replace_generators,
)
from simcoll.backends.threaded.store import RankStore
from simcoll.core.patches import Patches
from simcoll.core.rank_local import RankThreads, acting_as, acting_rank
from simcoll.core.trace import Stall
from simcoll.errors import ConfigurationError
from simcoll.recorder.failures import note_uncaught
from simcoll.recorder.session import activate, pipelines
from simcoll.recorder.source import forget_chains
from simcoll.values.choice import values_wanted
from simcoll.wrapper.async_checks import flights
from simcoll.wrapper.replicas import watch_replicas

_LONGEST_SLEEP = 1.0
"""Seconds of real time; loops that sleep until some real time sleep less at a time."""


def replace_pauses(patches: Patches, turns: Turns, waits: Callable[[], RankWaits]) -> None:
    """Let sleeps and waits for conditions give up the turn, within ``waits()`` of the rank."""
    patches.wrap(time, "sleep", functools.partial(_sleeping, turns=turns, waits=waits))
    patches.wrap(threading.Condition, "wait", functools.partial(_waiting, turns=turns, waits=waits))


def _sleeping(sleep: Callable[[float], None], turns: Turns, waits: Callable[[], RankWaits]) -> Callable[[float], None]:
    def sleep_for_rank(seconds: float) -> None:
        rank = acting_rank()
        if rank is None or threading.get_ident() != rank.main_thread or seconds <= 0:
            sleep(seconds)
            return
        began = time.monotonic()
        with turns.lock:
            place = turns.place(rank.rank)
        try:
            waits().pause(turns, place, seconds)
        except WaitTimeoutError:
            with waits():
                sleep(max(0.0, began + min(seconds, _LONGEST_SLEEP) - time.monotonic()))

    return sleep_for_rank


class _Waiter:
    """Imitates the lock at which a thread waits for a condition."""

    def __init__(self, turns: Turns, place: ParkingPlace) -> None:
        self._turns, self._place = turns, place

    def release(self) -> None:
        """Wake the thread: the condition has been notified."""
        with self._turns.lock:
            self._turns.wake(self._place)


def _waiting(
    wait: Callable[[threading.Condition, float | None], bool], turns: Turns, waits: Callable[[], RankWaits]
) -> Callable[[threading.Condition, float | None], bool]:
    def wait_for_rank(condition: threading.Condition, timeout: float | None = None) -> bool:
        rank = acting_rank()
        if rank is None or (timeout is not None and timeout <= 0):
            return wait(condition, timeout)
        if not condition._is_owned():  # type: ignore[attr-defined]
            raise RuntimeError("cannot wait on un-acquired lock")
        with turns.lock:
            place = turns.place(rank.rank)
        waiter = _Waiter(turns, place)
        condition._waiters.append(waiter)  # type: ignore[attr-defined]
        saved = condition._release_save()  # type: ignore[attr-defined]
        try:
            waits().pause(turns, place, timeout)
            return True
        except WaitTimeoutError:
            with contextlib.suppress(ValueError):
                condition._waiters.remove(waiter)  # type: ignore[attr-defined]
            return False
        finally:
            condition._acquire_restore(saved)  # type: ignore[attr-defined]

    return wait_for_rank


T = TypeVar("T")


def run_threaded(
    world_size: int,
    body: Callable[[int], T],
    *,
    seed: int = 0,
    schedule: str | None = None,
    choices: Choices | None = None,
    init: bool = True,
    timeout: float | None = None,
    values: str | None = None,
) -> Outcome[T]:
    """Run ``body(rank)`` on a thread for each rank, with torch.distributed as on real ranks, and judge the records.

    With ``init`` a default group exists as soon as the program needs it; the program's own ``init_process_group`` then
    returns that group, whatever backend it asks for. Otherwise there is none until the program makes it. The order in
    which ranks go on comes from ``seed`` (0: first come, first served) or from the ``schedule`` of an earlier outcome.
    ``values`` selects the calls whose values are checked: ``off``, ``sample``, ``all`` (default: SIMCOLL_VALUES, else
    ``off``). Exceptions of ``body`` are in the outcome; ``sys.exit(0)`` is a normal end. Raises
    :class:`~simcoll.errors.ConfigurationError` for an invalid world size or schedule, or within another such run,
    and TimeoutError if ranks have not ended after ``timeout`` seconds.
    """
    if world_size < 1:
        raise ConfigurationError(f"a world has at least 1 rank, got {world_size}")
    if acting_rank() is not None or not _only_one.acquire(blocking=False):
        raise ConfigurationError("ranks run as threads in this process already; let that run end first")
    try:
        # Chains of frames are bounded for each program, and a process may run many programs.
        forget_chains()
        chosen = choices or choices_of(seed, schedule)
        checked = values_wanted(values)
        run = _Run[T](world_size, RecordedSchedule(chosen), creates_default_group=init, seed=seed, values=checked)
        return run.run(body, timeout)
    finally:
        _only_one.release()


_only_one = threading.Lock()
"""Held while ranks run: global state of torch and Python is replaced then."""


class _Run(Generic[T]):
    """One run of a program on all ranks."""

    def __init__(
        self, size: int, choices: RecordedSchedule, *, creates_default_group: bool, seed: int, values: str
    ) -> None:
        self._size = size
        self._values = values
        self._choices = choices
        self._clock = ThreadClocks(size)
        self._turns = Turns(size, choices, self._clock)
        self._numbers = SwitchedGenerator()
        self._seed = seed
        self._began_ns = time.time_ns()
        self._world = World(size, self._turns, backend=GLOO, clock=self._clock, choices=choices)
        self._world.on_stuck = self._find_stuck
        self._results: dict[int, T] = {}
        self._endings: dict[int, Ending] = {}
        self._stall: Stall | None = None
        stores: defaultdict[tuple[str, object], RankStore] = defaultdict(
            lambda: RankStore(self._turns, self._waiting, self._clock)
        )
        self._ranks = [self._rank(rank, stores, creates_default_group=creates_default_group) for rank in range(size)]
        self._port = _free_port()

    def _rank(
        self, rank: int, stores: defaultdict[tuple[str, object], RankStore], *, creates_default_group: bool
    ) -> TorchRank:
        session = RankSession(rank, self._size, self._clock, self._began_ns, self._values)
        waits = RankWaits(rank, self._world, self._clock, session.box, self._numbers)
        return TorchRank(rank, self._world, session, waits, stores, creates_default_group)

    def run(self, body: Callable[[int], T], timeout: float | None) -> Outcome[T]:
        """Run the program on every rank, and judge the records."""
        with ExitStack() as stack:
            stack.callback(self._numbers.restore)
            patches = stack.enter_context(Patches())
            stack.enter_context(torch_for_ranks(patches))
            if self._values != "off":
                watch_replicas(patches)
            replace_environment(patches, self._joining)
            replace_pauses(patches, self._turns, self._waiting)
            replace_generators(patches, self._seed)
            self._turns.run(functools.partial(self._live, body), timeout)
        traces = [rank.session.box.trace() for rank in self._ranks]
        return outcome_of(self._results, self._endings, traces, self._stall, self._choices, self._clock.latest)

    def _live(self, body: Callable[[int], T], number: int) -> None:
        place, rank = RankThreads(number), self._ranks[number]
        place.main_thread = threading.get_ident()
        with acting_as(place):
            torch_ranks.set(rank)
            activate(rank.session)
            self._clock.go(number)
            self._numbers.switch_to(number)
            error = self._program(body, rank)
            self._end(rank, error)
            self._clock.stop(number)
            place.values.clear()

    def _program(self, body: Callable[[int], T], rank: TorchRank) -> BaseException | None:
        """Run a rank's program and its exit functions; returns the exception that ended it."""
        os.environ.update(self._launch_variables(rank.rank))
        error: BaseException | None = None
        try:
            self._results[rank.rank] = body(rank.rank)
        except SystemExit as leaving:
            error = None if leaving.code in (None, 0) else leaving
        except BaseException as raised:  # whatever ends one rank ends the others
            error = raised
        if error is not None and not isinstance(error, SystemExit):
            self._note(rank, error, error.__traceback__)
        try:
            join_own_threads()
            exit_functions.here.run()
        except BaseException as raised:  # an interpreter goes on, and so does the record
            error = error or raised
            self._note(rank, raised, raised.__traceback__)
        return error

    def _note(self, rank: TorchRank, error: BaseException, traceback: TracebackType | None) -> None:
        recorder = rank.session.current_recorder()
        if rank.waits.ended is None and recorder is not None:
            note_uncaught(recorder, error, traceback)

    def _end(self, rank: TorchRank, error: BaseException | None) -> None:
        ended = rank.waits.ended
        if ended is None:
            flights.here.look_after(last=True)
        for pipeline in list(pipelines.here):
            pipeline.close(0.0)
        ending = Ending(ended or error, self._now_ns(rank.rank))
        self._endings[rank.rank] = ending
        rank.session.box.event("exit")
        rank.session.box.close()
        if ending.error is not None and not ending.stopped:
            self._world.fail(rank.rank, ending.error)
            for other in self._ranks:
                other.waits.end_pauses(self._turns)

    def _now_ns(self, rank: int) -> int:
        return self._began_ns + round(self._clock.now(rank) * 1e9)

    def _launch_variables(self, rank: int) -> dict[str, str]:
        """The variables that a launcher sets for its ranks."""
        size = str(self._size)
        return {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "GROUP_RANK": "0",
            "WORLD_SIZE": size,
            "LOCAL_WORLD_SIZE": size,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self._port),
        }

    def _waiting(self) -> RankWaits:
        """The context for a wait of the calling thread's rank."""
        rank = torch_ranks.here
        assert rank is not None
        return rank.waits

    @contextmanager
    def _joining(self, place: RankThreads) -> Iterator[None]:
        """The context of a thread that a rank has started: it belongs to the rank."""
        with self._turns.adopted(place.rank):
            register_groups(of_thread(place))
            yield

    def _find_stuck(self) -> None:
        """Record the stall: no rank can go on, and all that ranks do from here on is caused by their StuckError."""
        if self._stall is not None:
            return
        now = max(self._now_ns(rank) for rank in range(self._size))
        self._note_missing()
        waiting = frozenset(range(self._size)) - self._endings.keys()
        hanging = {rank: at for rank in waiting if (at := self._ranks[rank].waits.hangs_at) is not None}
        self._stall = Stall(
            now,
            now + round(PATIENCE * 1e9),
            places=hanging,
            blocked=waiting - hanging.keys(),
            busy=frozenset(hanging),
        )
        for rank in waiting:
            self._ranks[rank].session.box.close()

    def _note_missing(self) -> None:
        """Record the missing ranks on the ranks that detect that they have ended."""
        ended = {rank for rank, ending in self._endings.items() if ending.error is None}
        for ticket, absent in detected_exits(self._world, ended):
            box = self._ranks[ticket.global_rank].session.box
            box.event("missing", **missing_event(ticket, absent, box.line_of(ticket.group, ticket.sequence)))


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port
