"""Rounds in which the ranks of a group prove calls that they have made already: the protocol of ``check`` mode.

A rank comes to a round with all calls that it has made since the last one, at least one. The ranks agree on the
smallest count among them, and one sum of words proves as many calls of each. So ranks may be any number of calls
apart and come at any time: what is compared is what stands at the same place, never what happens at the same moment.
Where the sum is not zero, sums over ever shorter beginnings find the first call that differs, and the ranks tell each
other that one alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from itertools import accumulate

from simcoll.core.record import Group, Record
from simcoll.errors import CollectiveMismatchError
from simcoll.proof.allreduce import WordChannel
from simcoll.proof.prover import Tolerance, document_of, record_of
from simcoll.proof.side_channel import PolledStore, exchange
from simcoll.recorder.pending_errors import PENDING_ERRORS
from simcoll.recorder.recorder import Entry
from simcoll.spec.checksum import positioned
from simcoll.verifier.agreement.compare import compare
from simcoll.verifier.findings.error_text import mismatch_text
from simcoll.verifier.findings.finding import Severity

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

Made = tuple[Entry, int]
"""A call, and the thread that made it."""


class UnreachableError(Exception):
    """All ranks are there, and cannot be connected."""


class Rounds:
    """One rank's side of the rounds of one group; all of it on one thread, but for :meth:`stop`."""

    def __init__(self, group: Group, group_rank: int, store: PolledStore) -> None:
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
        """A round needs a call."""
        return None

    def finish(self) -> None:
        """No call follows, which is for :meth:`meet` no reason to do anything else."""

    def meet(self, calls: Sequence[Made]) -> int | None:
        """Prove what all ranks have made of these calls; how many that is, at least one.

        None if the ranks were found apart: what comes after cannot be compared, and the error is a pending one. Raises
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
            if not self._harmless(*calls[place], position=self._settled + place + 1):
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
        words = (self._tolerance.word(entry.prepared) for entry, _ in calls[begin:])
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
            if any(finding.severity is Severity.ERROR for finding in findings):
                text = mismatch_text(self._group, records, self._rank, findings)
                PENDING_ERRORS.add(CollectiveMismatchError(f"{text}\n{LATE}", tuple(findings)), maker)
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
