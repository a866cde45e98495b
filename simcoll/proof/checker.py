"""Hands the calls of a group to threads that prove them while the program goes on: ``check`` mode.

The thread that makes a call only puts it on a list. A thread of the group's own comes to a round
(:mod:`simcoll.proof.check_rounds`) when K calls are there, when no call has come for a while (the program may hang, and
wait for an explanation), and once more when the group ends; another one does so with sends and receives
(:mod:`simcoll.proof.p2p_check`), which no round may hold up. Whatever keeps the ranks from meeting ends the check of
that group, and nothing else.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Collection, Sequence
from threading import get_ident
from typing import Generic, Protocol, TypeVar

from simcoll.core.record import Group
from simcoll.errors import ConfigurationError
from simcoll.proof.check_rounds import UnreachableError
from simcoll.proof.p2p_channel import Posted
from simcoll.proof.p2p_check import DigestExchange
from simcoll.recorder.recorder import Entry

T = TypeVar("T")
Made_contra = TypeVar("Made_contra", contravariant=True)

_EVERY = 64

_PAUSE_SECONDS = 1.0
"""How long no call must come before the ranks meet over fewer than K."""

_FARTHEST = 1 << 16
"""How many calls a rank may be ahead of the slowest; what it remembers of them stays below some ten MiB."""

_LET_GO_SECONDS = 0.5


def calls_between_rounds() -> int:
    """K: the environment's SIMCOLL_CHECK_EVERY, by default 64; ranks need not agree on it.

    Raises :class:`~simcoll.errors.ConfigurationError` on a value out of range.
    """
    text = os.environ.get("SIMCOLL_CHECK_EVERY", "") or str(_EVERY)
    if not (text.isascii() and text.isdecimal() and len(text) < 6 and 1 <= int(text) <= _FARTHEST // 2):
        expected = f"a whole number from 1 to {_FARTHEST // 2}"
        raise ConfigurationError(f"SIMCOLL_CHECK_EVERY={text!r:.80}: expected {expected}; correct or unset it")
    return int(text)


class CheckedGroup(Protocol[Made_contra]):
    """Where a rank compares its calls with the other ranks'; all of it on one thread, but for :meth:`stop`."""

    @property
    def pause(self) -> float | None:
        """After how many seconds to meet again though there is no call; None: not at all."""

    def meet(self, calls: Sequence[Made_contra], /) -> int | None:
        """Compare calls in order; returns how many were taken in, or None if ranks disagree.

        Raises OSError or RuntimeError if a rank or the store has gone, or after :meth:`stop`; UnreachableError.
        """

    def finish(self) -> None:
        """No call follows."""

    def stop(self) -> None:
        """Have a meeting that waits for other ranks, and every later one, raise; from any thread."""


class Checker(Generic[T]):
    """Proves calls of one group on this rank, some time after they were made, where ``meeting`` compares them.

    ``name`` is the thread's; ``found`` is called when ranks were found apart.
    """

    def __init__(
        self, group: Group, name: str, meeting: CheckedGroup[T], every: int, found: Callable[[], object]
    ) -> None:
        self._name = group.name
        self._thread_name = f"simcoll-{group.name}-{name}"
        self._every = every
        self._found = found
        self._meeting = meeting
        self._calls: list[T] = []
        self._pid = os.getpid()
        self._guard = threading.Lock()
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()
        self._idle = True
        self._closing = False
        self._ended = False

    def add(self, call: T) -> None:
        """Have a call proved soon; returns at once. Calls come in the order in which the group made them."""
        if self._ended:
            return
        self._calls.append(call)
        # The thread that sleeps without any call looks up at the first, the one that has some at the K-th.
        if self._idle or len(self._calls) >= self._every:
            self._notice()

    def _notice(self) -> None:
        if self._pid != os.getpid():
            # Threads do not survive a fork, and the group is the parent's.
            self._ended = True
            self._calls.clear()
        elif len(self._calls) >= _FARTHEST:
            self._give_up(f"this rank is {_FARTHEST} calls ahead of another")
        elif self._thread is None:
            with self._guard:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._serve, name=self._thread_name, daemon=True)
                    self._thread.start()
        elif not self._wake.is_set():
            self._wake.set()

    def _serve(self) -> None:
        try:
            while self._due():
                settled = self._meeting.meet(self._calls[:])
                if settled is None:
                    self._found()
                    break
                del self._calls[:settled]
        except UnreachableError as error:
            self._give_up(str(error))
        except (OSError, RuntimeError):
            # A rank that has no more to do leaves, and so does one that dies: neither is for this thread to report.
            pass
        except Exception as error:
            # Whatever it is, a program's own hook for the exceptions of threads must not hear of it.
            self._give_up(f"{type(error).__name__}: {error}")
        finally:
            self._end()

    def _due(self) -> bool:
        """Sleep until there is reason for a round; whether there is one, or else the end."""
        while not self._ended:
            self._wake.clear()
            self._idle = True
            count = len(self._calls)
            self._idle = not count
            again = self._meeting.pause
            if count >= self._every or self._closing:
                return count > 0 or again is not None
            woken = self._wake.wait(_PAUSE_SECONDS if count else again)
            if not woken and count == len(self._calls):
                return True
        return False

    def _give_up(self, reason: str) -> None:
        if not self._closing:
            sys.stderr.write(
                f"simcoll: process group {self._name} is not checked any more while the job runs: {reason}; "
                "its calls are still recorded, and judged afterwards\n"
            )
        self._end()

    def _end(self) -> None:
        self._ended = True
        self._meeting.stop()
        self._calls.clear()

    def abandon(self) -> None:
        """End at once: nobody has any use for the group."""
        if self._pid == os.getpid():
            self._closing = True
            self._wake.set()
            self._end()

    def finish(self) -> None:
        """No call follows: prove what is left, without being waited for."""
        self._meeting.finish()
        self._closing = True
        self._wake.set()

    def close(self, seconds: float) -> None:
        """Prove what can be proved within ``seconds``, then end."""
        if self._pid != os.getpid():
            return
        self.finish()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(seconds)
            self._end()
            self._thread.join(_LET_GO_SECONDS)


class MessageChecker(Checker[Posted]):
    """Proves the sends and receives of one group on this rank, which concern two ranks each."""

    def __init__(self, group: Group, exchange: DigestExchange, every: int, found: Callable[[], object]) -> None:
        super().__init__(group, "messages", exchange, every, found)
        self._exchange = exchange

    @property
    def devices(self) -> Collection[str]:
        """The device types whose messages are proved."""
        return self._exchange.devices

    def post(self, entry: Entry, channel: int) -> Posted:
        """Have a message of a channel proved as soon as it is known to be launched; its place is that of this call.

        What follows from a launch, on any thread of any rank, must come behind it: so the place is taken before.
        """
        posted = Posted(entry, get_ident(), channel)
        self.add(posted)
        return posted

    def failed(self) -> None:
        """A message did not come to its end: prove no more."""
        self._exchange.give_up()
