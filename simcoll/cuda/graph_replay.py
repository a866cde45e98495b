"""The calls that a CUDA graph has captured, and their records in a group when the graph runs them again.

A captured call did not run. Each launch of its graph makes it anew: it is written down in its group's sequence, and
compared with the other ranks' as any call is; in ``detail`` mode before the graph is launched.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from threading import get_ident
from typing import Protocol

from simcoll.core.record import Source, State
from simcoll.cuda.coalesced import Section
from simcoll.cuda.timing import Timed
from simcoll.cuda.watcher import DeviceTimes
from simcoll.errors import MissingRankError
from simcoll.proof.checker import Checker, Made
from simcoll.proof.prover import Prover
from simcoll.proof.queue import ProofQueue
from simcoll.recorder.pending_errors import PENDING_ERRORS
from simcoll.recorder.recorder import Entry, GroupLog, Prepared
from simcoll.spec.collectives import spec_of
from simcoll.spec.table import Kind


class GroupOfGraph(Protocol):
    """The pipeline of a group of which a graph has captured some calls."""

    @property
    def log(self) -> GroupLog:
        """The log in which the group's calls are written down."""
        ...

    def replay(self, calls: Sequence[CapturedCall]) -> GroupReplay | None:
        """Returns the group's part of a launch of a graph with these calls; None where the group has ended."""
        ...


@dataclass(frozen=True, slots=True)
class CapturedCall:
    """One call that a graph captured: its arguments and its source line. It holds no tensor, and no group."""

    group: weakref.ref[GroupOfGraph]
    prepared: Prepared
    source: Source

    @property
    def collective(self) -> bool:
        """True if all ranks of the group make it together."""
        return spec_of(self.prepared.call).kind is not Kind.POINT_TO_POINT


class _Launched(Section):
    """The calls of one launch. The rest of the graph takes time too, so only the end of the calls is recorded."""

    def ran_on_device(self, began_ns: int, ended_ns: int = 0) -> None:
        """The device began the graph then, and ended it (0: it runs)."""
        if ended_ns:
            self.ended_on_device()


class GroupReplay:
    """The calls of one group that one launch of a graph makes: first :meth:`join`, last :meth:`leave`.

    This one only records them.
    """

    def __init__(self, log: GroupLog, calls: Sequence[CapturedCall], times: DeviceTimes | None) -> None:
        self._log = log
        self._times = times
        self._launched: _Launched | None = None
        self._timed: Timed | None = None
        self._calls: Iterator[CapturedCall] = iter(calls)
        self._entries: list[Entry] = []

    @property
    def proves(self) -> bool:
        """True if :meth:`prove` has anything to do."""
        return False

    def join(self) -> None:
        """Take a place among the group's calls; where these are proved, in the queue of those that are not launched."""
        self._begin_rest()

    def prove(self) -> None:
        """Return when all ranks make these calls; raises what a proof raises."""

    def launching(self) -> None:
        """The graph is about to be launched on the current stream."""
        for entry in self._entries:
            entry.started()
        device = self._entries[0].use.device
        if self._times is not None and device >= 0:
            self._launched = _Launched()
            self._timed = self._times.begin(self._launched, self._entries[0].number, device)

    def launched(self) -> None:
        """The graph was launched; where no device times its end, its calls are recorded as finished at once."""
        for entry in self._entries:
            if self._timed is None or self._launched is None:
                entry.finished()
            else:
                self._launched.add(entry, {})
        if self._timed is not None and self._launched is not None and self._times is not None:
            self._launched.launch(self._times, None, self._timed)

    def refused(self) -> None:
        """The graph is not launched, or its launch failed."""
        for entry in self._entries:
            entry.finished(State.REJECTED)

    def leave(self) -> None:
        """Make way for the calls that come after."""

    def _begin(self, call: CapturedCall) -> Entry:
        entry = self._log.begin_replayed(call.prepared, call.source)
        self._entries.append(entry)
        return entry

    def _begin_rest(self) -> None:
        for call in self._calls:
            self._begin(call)


class CheckedReplay(GroupReplay):
    """Compares the calls in the background, after the launch: mode ``check``."""

    def __init__(
        self, log: GroupLog, calls: Sequence[CapturedCall], times: DeviceTimes | None, checker: Checker[Made]
    ) -> None:
        super().__init__(log, calls, times)
        self._checker = checker

    def join(self) -> None:
        """Take a place among the group's calls; raises a mismatch that the background has found before."""
        PENDING_ERRORS.raise_due()
        super().join()

    def launched(self) -> None:
        """The graph was launched: hand its collectives to the background."""
        super().launched()
        maker = get_ident()
        for entry in self._entries:
            if spec_of(entry.call).kind is not Kind.POINT_TO_POINT:
                self._checker.add((entry, maker))


class ProvedReplay(GroupReplay):
    """Proves the collectives before the launch: mode ``detail``."""

    def __init__(
        self,
        log: GroupLog,
        calls: Sequence[CapturedCall],
        times: DeviceTimes | None,
        queue: ProofQueue,
        prover: Prover,
    ) -> None:
        super().__init__(log, calls, times)
        self._queue = queue
        self._prover = prover
        self._run = [call.prepared for call in calls if call.collective]
        self._first: Entry | None = None

    @property
    def proves(self) -> bool:
        """True if there is a collective among the calls."""
        return bool(self._run)

    def join(self) -> None:
        """Take a place in the queue of the group's calls that are not launched."""
        if self._run:
            self._first = self._queue.join(self._begin_collective)
        else:
            self._begin_rest()

    def prove(self) -> None:
        """Return when all ranks make these calls; raises what a proof raises."""
        if self._first is None:
            return
        self._queue.await_turn(self._first)
        try:
            self._first.awaited()
            self._prover.prove_run(self._run, self._first, self._begin_collective)
        except MissingRankError as missing:
            self._entries[-1].lacked(missing)
            raise
        self._begin_rest()

    def leave(self) -> None:
        """Make way for the calls that come after."""
        if self._first is not None:
            self._queue.leave(self._first)
            self._first = None

    def _begin_collective(self) -> Entry:
        """Write down the next collective, and the messages before it."""
        return next(entry for call in self._calls if (entry := self._begin(call)) and call.collective)
