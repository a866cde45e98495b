"""Hands the calls of a group to threads that prove them while the program goes on: ``check`` mode.

The thread that makes a call only puts it on a list. A thread of the group's own comes to a round (:class:`Rounds`)
when K calls are there, when no call has come for a while (the program may hang, and wait for an explanation), and once
more when the group ends; another one does so with sends and receives (:mod:`simcoll.proof.p2p_check`), which no round
may hold up. An error that keeps the ranks from meeting ends the check of that group alone.

In rounds the ranks of a group prove calls that they have made already: the protocol of ``check`` mode. A rank comes to
a round with all calls that it has made since the last one, at least one. The ranks agree on the smallest count among
them, and one sum of words proves as many calls of each. So ranks may be any number of calls apart and come at any time:
calls at the same place are compared, never those at the same moment. Where the sum is not zero,
sums over ever shorter beginnings find the first call that differs, and the ranks tell each other that one alone.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Collection, Sequence
from datetime import timedelta
from itertools import accumulate
from threading import get_ident
from typing import Generic, Protocol, TypeVar

from simcoll.core.record import Group, Record
from simcoll.errors import CollectiveMismatchError, ConfigurationError
from simcoll.proof.allreduce import WordChannel
from simcoll.proof.p2p_channel import Posted
from simcoll.proof.p2p_check import DigestExchange
from simcoll.proof.prover import Tolerance, document_of, record_of
from simcoll.proof.side_channel import exchange
from simcoll.proof.store import PolledStore
from simcoll.recorder.pending_errors import PENDING_ERRORS
from simcoll.recorder.recorder import Entry, GroupLog, Written
from simcoll.spec.checksum import positioned
from simcoll.verifier.agreement.compare import compare
from simcoll.verifier.findings.error_text import mismatch_text
from simcoll.verifier.findings.finding import errors_of
from simcoll.verifier.program_text.parting import ran_nothing, with_partings

_MASK = (1 << 64) - 1

_EVER = timedelta(days=20)
"""A rank may be as late as it likes; a poll counts milliseconds in 31 bits."""

_CONNECT = timedelta(seconds=60)
"""Once all ranks are there, connecting takes milliseconds."""

_EXCHANGE = timedelta(seconds=60)

LATE = (
    "  found in the background (mode check): the call had been launched, and what was computed since may be wrong; "
    "mode detail raises before the call runs"
)

Made = tuple[Entry | Written, int]
"""A call, or what was written of one, and the thread that made it."""


class UnreachableError(Exception):
    """All ranks are there, and cannot be connected."""


class Rounds:
    """One rank's side of the rounds of one group; all of it on one thread, but for :meth:`stop`."""

    def __init__(self, log: GroupLog, store: PolledStore) -> None:
        group, group_rank = log.group, log.group_rank
        self._log = log
        self._group = group
        self._rank = group_rank
        self._size = len(group.ranks)
        self._store = store
        self._channel: WordChannel | None = None
        self._tolerance = Tolerance(group_rank, len(group.ranks))
        self._settled = 0
        self._stopped = False

    @property
    def pause(self) -> None:
        """None: a round needs a call."""
        return None

    def finish(self) -> None:
        """Do nothing: no call follows, which changes nothing for :meth:`meet`."""

    def meet(self, calls: Sequence[Made]) -> int | None:
        """Prove those of these calls that all ranks have made; returns their number, at least one.

        None if the ranks were found apart: later calls cannot be compared, and the error is a pending one. Raises
        OSError or RuntimeError if a rank or the store has gone, or after :meth:`stop`; UnreachableError.
        """
        if self._channel is None and self._size > 1:
            self._connect()
        common = len(calls) if self._channel is None else self._channel.least(len(calls), _EVER)
        proved = 0
        while proved < common:
            sums = self._sums(calls[:common], proved)
            if self._total(sums[-1]) == 0:
                break
            place = proved + self._first_broken(sums)
            made, maker = calls[place]
            entry = self._log.entry(made) if isinstance(made, tuple) else made
            if not self._harmless(entry, maker, position=self._settled + place + 1):
                return None
            proved = place + 1
        self._settled += common
        return common

    def _connect(self) -> None:
        """Wait until all ranks have come, as long as it takes, before any of them tries to reach another."""
        if self._store.add("come", 1) == self._size:
            self._store.set("all come", "")
        self._store.wait(["all come"], _EVER)
        try:
            self._channel = WordChannel.connect(self._store, self._rank, self._size, _CONNECT)
        except OSError as error:
            raise UnreachableError(str(error)) from error
        if self._stopped:
            self._channel.close()

    def _sums(self, calls: Sequence[Made], begin: int) -> list[int]:
        """The sums of this rank's words over every stretch of ``calls`` that starts at ``begin``."""
        first = self._settled + begin + 1
        prepared = (made[0] if isinstance(made, tuple) else made.prepared for made, _ in calls[begin:])
        words = map(self._tolerance.word, prepared)
        return list(accumulate(positioned(word, position) for position, word in enumerate(words, first)))

    def _total(self, word: int) -> int:
        return word & _MASK if self._channel is None else self._channel.sum(word, _EVER)

    def _first_broken(self, sums: Sequence[int]) -> int:
        """The first place up to which the words do not add up to zero, given that all of them do not."""
        low, high = 0, len(sums) - 1
        while low < high:
            middle = (low + high) // 2
            if self._total(sums[middle]) != 0:
                high = middle
            else:
                low = middle + 1
        return low

    def _harmless(self, entry: Entry, maker: int, *, position: int) -> bool:
        """Exchange a call whose words differ, and judge it as a post-mortem does."""
        with PENDING_ERRORS.expected():
            records = self._exchanged(entry, position)
            findings = compare(self._group, records, strict=False)
            if errors_of(findings):
                told = with_partings(findings, ran_nothing)
                text = mismatch_text(self._group, records, self._rank, told)
                PENDING_ERRORS.add(CollectiveMismatchError(f"{text}\n{LATE}", told), maker)
                return False
        self._tolerance.accept(records)
        return True

    def _exchanged(self, entry: Entry, position: int) -> dict[int, Record]:
        if self._channel is None:
            return {self._rank: entry.record()}
        documents = exchange(self._store, f"differ/{position}", self._rank, self._size, document_of(entry), _EXCHANGE)
        return {rank: record_of(self._group, document) for rank, document in documents.items()}

    def stop(self) -> None:
        """Have a round that waits for other ranks, and every later one, raise; from any thread."""
        self._stopped = True
        self._store.stop()
        if self._channel is not None:
            self._channel.close()


T = TypeVar("T")
Made_contra = TypeVar("Made_contra", contravariant=True)

_EVERY = 64

_PAUSE_SECONDS = 1.0
"""The time without a call after which the ranks meet over fewer than K calls."""

_FARTHEST = 1 << 16
"""The number of calls a rank may be ahead of the slowest; its memory of them stays below some ten MiB."""

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
    """The comparison of a rank's calls with the other ranks'; all of it on one thread, but for :meth:`stop`."""

    @property
    def pause(self) -> float | None:
        """The seconds after which to meet again though there is no call; None: not at all."""

    def meet(self, calls: Sequence[Made_contra], /) -> int | None:
        """Compare calls in order; returns the number taken in, or None if ranks disagree.

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
            # A program's own hook for the exceptions of threads must get none of simcoll's.
            self._give_up(f"{type(error).__name__}: {error}")
        finally:
            self._end()

    def _due(self) -> bool:
        """Sleep until there is reason for a round; returns True for a round, False for the end."""
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
        """End at once: the group is no longer used."""
        if self._pid == os.getpid():
            self._closing = True
            self._wake.set()
            self._end()

    def finish(self) -> None:
        """No call follows: prove the calls that are left, without being waited for."""
        self._meeting.finish()
        self._closing = True
        self._wake.set()

    def close(self, seconds: float) -> None:
        """Prove as many calls as possible within ``seconds``, then end."""
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

        Calls that follow from a launch, on any thread of any rank, must come behind it: so the place is taken before.
        """
        posted = Posted(entry, get_ident(), channel)
        self.add(posted)
        return posted

    def failed(self) -> None:
        """A message did not come to its end: prove no more."""
        self._exchange.give_up()
