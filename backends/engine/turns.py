"""Ranks as threads that take turns: one rank runs at a time, in a deterministic order.

A rank keeps its turn until one of its threads waits. The thread that makes the condition of a wait true wakes the
waiting one, in the manner of trio's parking lot, so that nothing polls and nothing sleeps. When no rank is ready and no
thread runs, no wait can end any more: the waiting ranks are stuck, and each gets an exception.

Threads that a rank starts belong to it (:meth:`Turns.adopted`) and run freely beside it: where one of them waits, the
rank gives up its turn, whatever its other threads do.

Ranks that are still running after a timeout or an interrupt are abandoned: an exception is raised in their threads.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from types import FrameType
from typing import Protocol

from simcoll.backends.engine.parking import ParkingPlace, StuckError, wait_timeout
from simcoll.backends.engine.schedules import Choices, Decision, InOrder
from simcoll.core.rank_local import acting_as, acting_rank
from simcoll.core.source_roots import simcoll_folders
from simcoll.core.threads import thread_frames
from simcoll.errors import ConfigurationError

_ENDING_SECONDS = 2.0
"""The time in which abandoned ranks must end; one that stays in C code is left behind."""

_AT_ONCE_SECONDS = 0.2
"""The time in which abandoned ranks that were waiting must end by themselves."""

_PLACES_SHOWN = 4
_ENGINE_FOLDER = os.path.dirname(os.path.realpath(__file__))
"""Threads whose innermost frame is here wait for their turn."""


class AbandonedError(BaseException):
    """Raised in abandoned ranks: no program should catch it."""


def end_threads(threads: Sequence[threading.Thread], inside: Collection[threading.Thread]) -> None:
    """Wait until threads end; AbandonedError is raised in those ``inside`` a program at their next line of Python."""
    began = time.monotonic()
    threads = [thread for thread in threads if thread.ident is not None]
    for thread in threads:
        thread.join(max(0.0, began + _AT_ONCE_SECONDS - time.monotonic()))
    while (alive := [one for one in threads if one.is_alive()]) and time.monotonic() < began + _ENDING_SECONDS:
        for thread in alive:
            if thread in inside:
                _raise_in(thread, AbandonedError)
            thread.join(_AT_ONCE_SECONDS / len(alive) / 4)


def _raise_in(thread: threading.Thread, error: type[BaseException]) -> None:
    if thread.is_alive() and thread.ident is not None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(error))


def timeout_text(threads: Sequence[threading.Thread], timeout: float) -> str:
    """The text of a timeout: the lines of the threads that do not wait for their turn."""
    frames = thread_frames()
    found = []
    for thread in threads:
        frame = frames.get(thread.ident or 0)
        if (
            frame is not None
            and os.path.dirname(_file(frame)) != _ENGINE_FOLDER
            and (place := _in_the_program(frame)) is not None
        ):
            code = place.f_code
            found.append(f"{thread.name} is at {code.co_filename}:{place.f_lineno} in {code.co_name}")
    where = "; ".join(found[:_PLACES_SHOWN]) or "no rank runs at this moment"
    return f"not all of {len(threads)} ranks have ended after {timeout:g} s: {where}"


def _in_the_program(frame: FrameType | None) -> FrameType | None:
    while frame is not None and _file(frame).startswith(simcoll_folders()):
        frame = frame.f_back
    return frame


def _file(frame: FrameType) -> str:
    return os.path.realpath(frame.f_code.co_filename)


_STRAY_SECONDS = 5.0
"""The time before ranks count as stuck while a thread runs outside its rank's turn: it may be blocked in a join."""


PATIENCE = 30.0
"""Seconds after which stuck ranks count as ended, as ``simcoll run`` ends them: a rank with a longer timeout is stuck
before that.
"""


class Clock(Protocol):
    """The time of each rank, in seconds."""

    def now(self, rank: int) -> float:
        """The time of a rank."""
        ...

    def reach(self, rank: int, seconds: float) -> None:
        """Advance a rank to a time that it has waited for."""
        ...


class Turns:
    """Runs ``count`` ranks, one at a time; ``choices`` decides which is next. ``lock`` guards their shared state.

    With a ``clock`` waits may have timeouts: where no rank can go on, the wait with the earliest end times out.
    """

    def __init__(self, count: int, choices: Choices | None = None, clock: Clock | None = None) -> None:
        self.lock = threading.RLock()
        self.on_stuck: Callable[[], None] = _nothing
        """Called under the lock when the ranks are found stuck, before they get an exception."""
        self._choices = InOrder() if choices is None else choices
        self._clock = clock
        self._ready = dict.fromkeys(range(count))
        self._holder: int | None = None
        self._parked: dict[ParkingPlace, None] = {}
        self._released: dict[int, list[ParkingPlace]] = {}
        self._started = [ParkingPlace(rank) for rank in range(count)]
        self._running: dict[int, int] = {}
        self._moves = 0
        self._timer: threading.Timer | None = None
        self._left = count
        self._abandoned = False
        self._inside: set[threading.Thread] = set()
        self._owners: dict[int, int] = {}
        self._adopted: set[int] = set()
        self._ended = threading.Event()

    def run(self, body: Callable[[int], None], timeout: float | None = None) -> None:
        """Run ``body(rank)`` on every rank to its end. ``body`` must not raise.

        Raises TimeoutError if ranks have not ended after ``timeout`` seconds; they are abandoned then, as they are if
        the calling thread is interrupted. Raises :class:`~simcoll.errors.ConfigurationError` if the system has no
        thread for a rank.
        """
        threads = [
            threading.Thread(target=self._rank, args=(body, rank), name=f"rank {rank}", daemon=True)
            for rank in range(len(self._started))
        ]
        try:
            _start(threads)
            with self.lock:
                for rank, place in enumerate(self._started):
                    self._released[rank] = [place]
                self._pass_on()
            if not self._ended.wait(timeout):
                raise TimeoutError(timeout_text(threads, timeout or 0.0))
            for thread in threads:
                thread.join()
        except BaseException:
            self._abandon(threads)
            raise
        finally:
            if self._timer is not None:
                self._timer.cancel()
                self._timer.join()

    def check_own(self, rank: int) -> None:
        """Raise RuntimeError if the calling thread is that of another rank and does not act for this one."""
        owner = self._owners.get(threading.get_ident(), rank)
        if owner == rank or ((acting := acting_rank()) is not None and acting.rank == rank):
            return
        raise RuntimeError(
            f"rank {owner} makes a call on a communicator or group of rank {rank}: every rank has its own,"
            " and a global variable, which all ranks share, holds that of the last rank; pass it as an argument"
        )

    def place(self, rank: int) -> ParkingPlace:
        """A place at which the calling thread, of global rank ``rank``, may wait; to be called under the lock."""
        self._check_abandoned()
        place = ParkingPlace(rank)
        place.adopted = threading.get_ident() in self._adopted
        self._parked[place] = None
        return place

    def wait(self, place: ParkingPlace, timeout: float | None = None) -> None:
        """Give up the turn until :meth:`wake`; raises :class:`StuckError`, or with a clock ``WaitTimeoutError``."""
        self.pass_time(place, None if timeout is None or timeout > PATIENCE else timeout)

    def pass_time(self, place: ParkingPlace, seconds: float | None) -> None:
        """Wait as :meth:`wait` does, for as long as the program itself asks, without a limit."""
        with self.lock:
            if seconds is not None and self._clock is not None:
                place.deadline = self._clock.now(place.rank) + seconds
            self._stop(place.rank, only_if_last=place.released)
        place.baton.acquire()
        self._check_abandoned()
        if place.timed_out:
            raise wait_timeout(place.rank, seconds)
        if place.stuck:
            raise StuckError(f"rank {place.rank} waits, and no rank is left that could end its wait")

    def wake(self, place: ParkingPlace) -> None:
        """Let a thread go on when its rank's turn comes; called under the lock."""
        if place.woken:
            return
        place.woken = True
        self._moves += 1
        del self._parked[place]
        if place.adopted:
            # The rank that has the turn may be blocked, unseen, on a thread of its own that waits for this one.
            self._go(place.rank)
            place.released = True
            place.baton.release()
            return
        self._released.setdefault(place.rank, []).append(place)
        if self._holder != place.rank:
            self._ready[place.rank] = None
        self._pass_on()

    def pause(self, rank: int) -> None:
        """Give the turn to another rank if the schedule decides so; called without the lock."""
        self._check_abandoned()
        # Threads that a rank starts run beside it: see wake.
        if not self._choices.preempts or threading.get_ident() in self._adopted:
            return
        with self.lock:
            if self._holder != rank or not self._ready:
                return
            option = self._choices.choose(Decision.PREEMPTION, 1 + len(self._ready))
            if option == 0:
                return
            place = ParkingPlace(rank, woken=True)
            self._released.setdefault(rank, []).append(place)
            chosen = self._nth_ready(option - 1)
            self._ready[rank] = None
            self._stop(rank, next_one=chosen)
        place.baton.acquire()

    def yield_turn(self, rank: int) -> bool:
        """Let all other ready ranks go first; returns True if there may be any. Called without the lock."""
        self._check_abandoned()
        with self.lock:
            if self._holder != rank or not self._ready:
                return self._holder != rank or sum(self._running.values()) > 1
            place = ParkingPlace(rank, woken=True)
            self._released.setdefault(rank, []).append(place)
            first = self._nth_ready(0)
            self._ready[rank] = None
            self._stop(rank, next_one=first)
        place.baton.acquire()
        return True

    def others_may_run(self, rank: int) -> bool:
        """True if threads run that need no turn; called under the lock by a thread of the rank."""
        return self._holder != rank or sum(self._running.values()) > 1

    @contextmanager
    def adopted(self, rank: int) -> Iterator[None]:
        """Let the calling thread belong to the rank that started it, within the block."""
        with self.lock:
            self._go(rank)
            self._adopted.add(threading.get_ident())
        try:
            yield
        finally:
            with self.lock:
                self._adopted.discard(threading.get_ident())
                self._moves += 1
                self._stop(rank, only_if_last=True)

    def _abandon(self, threads: Sequence[threading.Thread]) -> None:
        """End all ranks: those that wait are released at once, in no order."""
        with self.lock:
            self._abandoned = True
            released = (place for places in self._released.values() for place in places)
            waiting = dict.fromkeys([*self._started, *self._parked, *released])
            self._parked.clear()
            self._released.clear()
            for place in [place for place in waiting if not place.released]:
                place.woken = place.released = True
                place.baton.release()
        end_threads(threads, self._inside)

    def _check_abandoned(self) -> None:
        if self._abandoned:
            raise AbandonedError

    def _rank(self, body: Callable[[int], None], rank: int) -> None:
        self._started[rank].baton.acquire()
        self._owners[threading.get_ident()] = rank
        try:
            if not self._abandoned:
                self._inside.add(threading.current_thread())
                body(rank)
                self._inside.discard(threading.current_thread())
        except AbandonedError:
            self._inside.discard(threading.current_thread())
        finally:
            with self.lock:
                del self._owners[threading.get_ident()]
                self._left -= 1
                self._stop(rank, only_if_last=True)
                if not self._left:
                    self._ended.set()

    def _go(self, rank: int) -> None:
        self._running[rank] = self._running.get(rank, 0) + 1

    def _stop(self, rank: int, *, only_if_last: bool = False, next_one: int | None = None) -> None:
        """Note that a thread of the rank stops; its rank gives up the turn."""
        self._running[rank] = self._running.get(rank, 0) - 1
        if self._holder == rank and not (only_if_last and self._running[rank] > 0):
            self._holder = None
        self._pass_on(next_one)

    def _pass_on(self, next_one: int | None = None) -> None:
        if self._holder is None:
            if not self._ready:
                self._find_stuck()
            if not self._ready:
                return
            self._holder = self._next() if next_one is None else next_one
            del self._ready[self._holder]
        self._release(self._holder)

    def _next(self) -> int:
        return self._nth_ready(self._choices.choose(Decision.TURN, len(self._ready)) if len(self._ready) > 1 else 0)

    def _nth_ready(self, number: int) -> int:
        return next(islice(self._ready, number, None))

    def _release(self, rank: int) -> None:
        """Release the threads of the rank whose waits have ended."""
        for place in self._released.pop(rank, ()):
            self._go(rank)
            place.released = True
            place.baton.release()

    def _find_stuck(self) -> None:
        if not self._parked or self._left == 0:
            return
        if any(threads > 0 for threads in self._running.values()):
            self._look_later()
            return
        self._end_a_wait()

    def _look_later(self) -> None:
        if self._timer is None:
            self._timer = threading.Timer(_STRAY_SECONDS, self._look_again, (self._moves,))
            # Daemon threads do not delay the interpreter's exit.
            self._timer.daemon = True
            # The timer's thread belongs to no rank.
            with acting_as(None):
                self._timer.start()

    def _look_again(self, moves: int) -> None:
        with self.lock:
            self._timer = None
            if self._ready or self._holder is not None or not self._parked or not self._left:
                return
            if self._moves != moves:
                self._look_later()
                return
            self._end_a_wait()
            self._pass_on()

    def _end_a_wait(self) -> None:
        """Time out the wait with the earliest end; where no wait has an end, all ranks are stuck."""
        waits = [(place.deadline, place) for place in self._parked if place.deadline is not None]
        if not waits or self._clock is None:
            self._give_up()
            return
        deadline, place = min(waits, key=lambda wait: wait[0])
        place.timed_out = place.woken = True
        del self._parked[place]
        self._released.setdefault(place.rank, []).append(place)
        self._ready[place.rank] = None
        self._clock.reach(place.rank, deadline)

    def _give_up(self) -> None:
        self.on_stuck()
        if self._ready:
            return
        for place in list(self._parked):
            place.stuck = place.woken = True
            del self._parked[place]
            self._released.setdefault(place.rank, []).append(place)
            self._ready[place.rank] = None


def _start(threads: Sequence[threading.Thread]) -> None:
    for thread in threads:
        try:
            thread.start()
        except RuntimeError as error:
            raise ConfigurationError(
                f"{thread.name} of {len(threads)} has no thread ({error}):"
                " take fewer ranks, or raise the limits of threads and memory (ulimit -u, ulimit -v)"
            ) from error


def _nothing() -> None:
    return None
