"""Ranks as threads that take turns: one rank runs at a time, in an order that is the same every time.

A rank keeps its turn until a thread of it waits. Whoever makes its condition true wakes it, in the manner of trio's
parking lot, so that nothing polls and nothing sleeps. When nobody is ready and no thread runs, nobody can wake anybody:
those who wait are stuck, and each is told so by an exception.

Threads that a rank starts itself belong to it (:meth:`Turns.adopt`) and run whenever they like beside it: where one of
them waits, the rank gives its turn away, whatever its other threads do.

How ranks that are threads are ended where nobody waits for them any more: after a timeout, or an interrupt.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from types import FrameType
from typing import Protocol

from simcoll.backends.engine.parking import LateError, ParkingPlace, StuckError
from simcoll.backends.engine.schedules import Choices, Decision, InOrder
from simcoll.core.rank_local import acting_as, acting_rank
from simcoll.core.source_roots import simcoll_folders
from simcoll.errors import ConfigurationError

_ENDING_SECONDS = 2.0
"""So long ranks have to come to an end; one that sits in C code meanwhile is left behind."""

_AT_ONCE_SECONDS = 0.2
"""So long those have that were waiting, and have been told."""

_PLACES_SHOWN = 4
_HERE = os.path.dirname(os.path.realpath(__file__))
"""Where ranks wait for their turn."""


class AbandonedError(BaseException):
    """Raised in ranks that nobody waits for any more: no program should catch it."""


def end_threads(threads: Sequence[threading.Thread], inside: Collection[threading.Thread]) -> None:
    """See threads to their end; those ``inside`` a program raise AbandonedError at their next line of Python."""
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


def late_text(threads: Sequence[threading.Thread], timeout: float) -> str:
    """Which threads have not ended, and where in the program those are that do not wait for their turn."""
    frames = sys._current_frames()
    found = []
    for thread in threads:
        frame = frames.get(thread.ident or 0)
        if (
            frame is not None
            and os.path.dirname(_file(frame)) != _HERE
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
"""So long nobody is taken for stuck while a thread runs outside its rank's turn: it may be blocked in a join, too."""


PATIENCE = 30.0
"""Seconds after which ranks that are stuck count as ended, as ``simcoll run`` ends them: whoever would wait for longer
is stuck before.
"""


class Clock(Protocol):
    """The time of each rank, in seconds."""

    def now(self, rank: int) -> float:
        """What time it is for a rank."""
        ...

    def reach(self, rank: int, seconds: float) -> None:
        """A rank has waited until then."""
        ...


class Turns:
    """Runs ``count`` ranks, one at a time; ``choices`` picks who is next. ``lock`` guards what the ranks share.

    With a ``clock`` waits have ends of their own: where nobody can go on, the one goes on whose time is over first.
    """

    def __init__(self, count: int, choices: Choices | None = None, clock: Clock | None = None) -> None:
        self.lock = threading.RLock()
        self.on_stuck: Callable[[], None] = _nothing
        """Called under the lock when the ranks are found stuck, before they are told."""
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

        Raises TimeoutError where ranks have not ended after ``timeout`` seconds. They are ended then, and so they are
        where the calling thread is interrupted. Raises :class:`~simcoll.errors.ConfigurationError` where the system has
        no thread for a rank.
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
                raise TimeoutError(late_text(threads, timeout or 0.0))
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
        """Raise RuntimeError where the calling thread is that of another rank, and does not act for this one."""
        owner = self._owners.get(threading.get_ident(), rank)
        if owner == rank or ((acting := acting_rank()) is not None and acting.rank == rank):
            return
        raise RuntimeError(
            f"rank {owner} makes a call on a communicator or group of rank {rank}: every rank has its own,"
            " and a global variable, which all ranks share, holds that of the last rank; pass it as an argument"
        )

    def place(self, rank: int) -> ParkingPlace:
        """Where the calling thread, of global rank ``rank``, may wait; to be taken under the lock."""
        self._check_abandoned()
        place = ParkingPlace(rank)
        place.beside = threading.get_ident() in self._adopted
        self._parked[place] = None
        return place

    def wait(self, place: ParkingPlace, timeout: float | None = None) -> None:
        """Give up the turn until :meth:`wake`; raises :class:`StuckError`, with a clock its ``LateError`` as well."""
        self.pass_time(place, None if timeout is None or timeout > PATIENCE else timeout)

    def pass_time(self, place: ParkingPlace, seconds: float | None) -> None:
        """As :meth:`wait`, for as long as the program itself says, however long that is."""
        with self.lock:
            if seconds is not None and self._clock is not None:
                place.deadline = self._clock.now(place.rank) + seconds
            self._stop(place.rank, only_if_last=place.released)
        place.baton.acquire()
        self._check_abandoned()
        if place.late:
            raise LateError(f"rank {place.rank} has waited for {seconds:g} s, and nobody came to end its wait")
        if place.stuck:
            raise StuckError(f"rank {place.rank} waits, and no rank is left that could end its wait")

    def wake(self, place: ParkingPlace) -> None:
        """Let a thread go on when its rank's turn comes; called under the lock."""
        if place.woken:
            return
        place.woken = True
        self._moves += 1
        del self._parked[place]
        if place.beside:
            # The turn may be held by a rank that waits, unseen, for a thread of its own that waits for this one.
            self._go(place.rank)
            place.released = True
            place.baton.release()
            return
        self._released.setdefault(place.rank, []).append(place)
        if self._holder != place.rank:
            self._ready[place.rank] = None
        self._pass_on()

    def pause(self, rank: int) -> None:
        """A moment at which the rank may lose its turn to another; called without the lock."""
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

    def give_way(self, rank: int) -> bool:
        """Let all others that are ready go first; whether there may be any. Called without the lock."""
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

    def beside(self, rank: int) -> bool:
        """Whether threads run that wait for no turn; called under the lock by a thread of the rank."""
        return self._holder != rank or sum(self._running.values()) > 1

    @contextmanager
    def adopted(self, rank: int) -> Iterator[None]:
        """What the calling thread does in the block, it does for a rank that started it."""
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
        """End all ranks: those that wait are told so at once, in no order."""
        with self.lock:
            self._abandoned = True
            told = (place for places in self._released.values() for place in places)
            waiting = dict.fromkeys([*self._started, *self._parked, *told])
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
        """A thread of the rank runs no more; whose turn it was gives it away."""
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
        """Let those threads of the rank run whose wait is over."""
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
            # Daemon threads do not hold the interpreter's end up.
            self._timer.daemon = True
            # No thread of the rank that happens to be here.
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
        """Let the one go on whose time is over first; where nobody has an end of its own, all are stuck."""
        waits = [(place.deadline, place) for place in self._parked if place.deadline is not None]
        if not waits or self._clock is None:
            self._give_up()
            return
        deadline, place = min(waits, key=lambda wait: wait[0])
        place.late = place.woken = True
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
