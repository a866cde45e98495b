"""Watches the arrays of a simulated rank's asynchronous calls until it has waited for them: SC501, SC502, SC503.

As for real tensors (:mod:`simcoll.wrapper.async_checks`), a call is open from when it is made until its end has been
observed. If the program has waited for something else since, which may imply that end, a call is open only while it
still runs.

:class:`SimulatedEntry` is the record of one call while it runs.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from simcoll.backends.engine.tickets import RefusedCallError, RefusedPeerError, Ticket
from simcoll.backends.engine.virtual_time import nanoseconds
from simcoll.backends.simulated.values import SimulatedValues
from simcoll.blackbox.memory_box import MemoryBox
from simcoll.core.record import Group, Source, State, source_document
from simcoll.core.trace import HANDED_ON, LET_GO
from simcoll.errors import CollectiveMismatchError
from simcoll.spec.call import ANY_SOURCE, Call
from simcoll.spec.semantics import Array, Outputs


class SimulatedEntry:
    """A call's entry in the rank's black box: ``number`` is that of the record, ``sequence`` that of the call."""

    __slots__ = ("_box", "group", "line", "number", "sequence", "ticket", "values")

    def __init__(self, box: MemoryBox, group: Group, line: Source, sequence: int, number: int) -> None:
        self._box = box
        self.group = group
        self.line = line
        self.sequence = sequence
        self.number = number
        self.ticket: Ticket
        self.values: SimulatedValues | None = None

    @property
    def call(self) -> Call:
        """The call."""
        return self.ticket.call

    def mark(self, flag: int) -> None:
        """Set a bit of the record's flags."""
        self._box.mark(self.number, flag)

    def event(self, kind: str, **data: object) -> None:
        """Record an event of the call."""
        document = source_document(self.line)
        self._box.event(kind, group=self.group.name, sequence=self.sequence, op=self.call.op, source=document, **data)

    def ended(self, ticket: Ticket) -> None:
        """Record how the call ended, and the source of a receive from any source.

        A call that a rank gives up because others have failed, or are stuck, has not ended.
        """
        began, over = nanoseconds(ticket.began), nanoseconds(ticket.ended)
        if ticket.met and ticket.call.peer == ANY_SOURCE:
            known = replace(self.call, peer=ticket.source)
            self._box.resign(self.number, self._box.signature(known))
        if ticket.error is None:
            self._box.ran(self.number, began, over, State.COMPLETED)
            if self.values is not None:
                self.values.write(self._box)
        elif isinstance(ticket.error, CollectiveMismatchError):
            self._box.ran(self.number, began, over, State.FAILED if ticket.is_message else State.REJECTED)
        elif isinstance(ticket.error, (RefusedCallError, RefusedPeerError)):
            self._box.ran(self.number, began, over, State.REJECTED)
            self._refused(ticket.error)

    def _refused(self, error: Exception) -> None:
        self._box.event(
            "rejected",
            group=self.group.name,
            sequence=self.sequence,
            function=self.call.op,
            type=type(error).__name__,
            message=str(error),
            source=source_document(self.line),
        )


class ArrayData:
    """The buffers of one call: an engine's :class:`~simcoll.backends.engine.tickets.Data`."""

    def __init__(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        self._inputs, self._outputs = inputs, outputs
        self.flight: SimulatedFlight | None = None
        """The open call that they belong to, if any."""
        self.values: SimulatedValues | None = None
        """The values of the call, where they are checked."""
        self.notice: Callable[[], None] = _nothing
        """Called if the inputs were changed before the call ran."""

    def read(self) -> Sequence[Array]:
        """The inputs' current values."""
        if self.flight is not None and self.flight.runs():
            self.notice()
        if self.values is not None:
            self.values.sent(self._inputs)
        return self._inputs

    def write(self, results: Outputs) -> None:
        """Write the results into the caller's arrays; those that the standard leaves undefined stay unchanged."""
        if self.flight is not None:
            self.flight.arrives()
        for result, output in zip(results, self._outputs, strict=True):
            if result is not None:
                np.copyto(output, result)
        if self.values is not None:
            self.values.received(self._outputs)
        if self.flight is not None:
            self.flight.ran()


def _nothing() -> None:
    return None


if TYPE_CHECKING:
    from simcoll.backends.simulated.async_checks import SimulatedEntry

_MOST_WORK = 10_000
"""The most steps to find out whether two strided arrays share an element; beyond that, their bounds decide."""


class SimulatedFlight:
    """One asynchronous call that may be open: the arrays that it reads and writes, and their content when it was made.

    ``shared``: another call uses its memory, so that a change cannot be attributed.
    """

    def __init__(self, entry: SimulatedEntry, reads: Sequence[Array], writes: Sequence[Array], waits: int) -> None:
        self.entry = entry
        self.reads, self.writes = reads, writes
        self.waits = waits
        self.shared = False
        self._results = [array for array in writes if not _share([array], reads)]
        self._before = _held(reads)
        self._results_before = _held(self._results)
        self._overwrites = False

    @property
    def running(self) -> bool:
        """True if it has not ended yet."""
        return not self.entry.ticket.done

    def runs(self) -> bool:
        """True if the inputs were changed before the call, which is about to run."""
        return not self.shared and self._before != _held(self.reads)

    def arrives(self) -> None:
        """Note that the result is about to be written, over what the program may have written there."""
        self._overwrites = self._results_before != _held(self._results)

    def ran(self) -> None:
        """Note that the call has run, with the content of its buffers."""
        self._before, self._results_before = _held(self.reads), _held(self._results)

    def changed(self) -> bool:
        """True if the program has changed a buffer since the call was made, or since it ran.

        What only receives may have been changed before that, too: the result is then written over it.
        """
        now = _held(self.reads), _held(self._results)
        return not self.shared and (self._overwrites or now != (self._before, self._results_before))


class SimulatedFlights:
    """The open calls of one rank."""

    def __init__(self) -> None:
        self.waits = 0
        """The number of waits of the rank."""
        self._open: dict[SimulatedFlight, None] = {}
        self._orphans: list[tuple[SimulatedEntry, list[weakref.ref[Array]], int]] = []
        self._counts: Counter[object] = Counter()

    def meet(self, entry: SimulatedEntry, reads: Sequence[Array], writes: Sequence[Array]) -> bool:
        """Report the open calls whose memory a new call uses, if either of the two writes to it.

        Returns True if there are any.
        """
        self.look_after()
        shared = False
        for other in list(self._open):
            if other.waits != self.waits and not other.running:
                continue
            both = _share(writes, other.writes)
            if both or _share(writes, other.reads) or _share(reads, other.writes):
                first, other.shared, shared = other.entry, True, True
                document = {
                    "group": first.group.name,
                    "sequence": first.sequence,
                    "op": first.call.op,
                    "source": source_document(first.line),
                }
                case = ("overlap", entry.line, first.line, both, other.running)
                self._report(entry, case, both_write=both, running=other.running, other=document)
        return shared

    def open(self, entry: SimulatedEntry, reads: Sequence[Array], writes: Sequence[Array]) -> SimulatedFlight:
        """Watch a call until :meth:`end`, after :meth:`meet`."""
        flight = SimulatedFlight(entry, reads, writes, self.waits)
        flight.shared = self.meet(entry, reads, writes)
        self._open[flight] = None
        return flight

    def changed(self, flight: SimulatedFlight, *, known: bool, noticed: Source | None = None) -> None:
        """Report that a buffer of an open call was changed; ``known``: before its data had left."""
        case = ("changed", flight.entry.line, known, noticed)
        document = None if noticed is None else source_document(noticed)
        self._report(flight.entry, case, known=known, noticed=document)

    def awaited(self, flight: SimulatedFlight, noticed: Source) -> None:
        """Note that the program waits for a call, or has observed its end."""
        if flight in self._open and (flight.waits == self.waits or flight.running) and flight.changed():
            self.changed(flight, known=False, noticed=noticed)
        self.end(flight)

    def end(self, flight: SimulatedFlight) -> None:
        """Stop watching a call."""
        self._open.pop(flight, None)

    def dropped(self, flight: SimulatedFlight) -> None:
        """Note that the program has dropped the request of a call."""
        flight.entry.mark(LET_GO)
        self._orphans.append((flight.entry, [weakref.ref(_owner(array)) for array in flight.writes], self.waits))
        self.end(flight)

    def look_after(self, *, last: bool = False) -> None:
        """Clear dropped calls whose result is out of reach; others count after a wait, or at the end (``last``)."""
        left = []
        for orphan in self._orphans:
            entry, owners, waits = orphan
            if not any(owner() is not None for owner in owners):
                entry.mark(HANDED_ON)
            elif not last and waits == self.waits:
                left.append(orphan)
        self._orphans = left

    def _report(self, entry: SimulatedEntry, case: tuple[object, ...], **data: object) -> None:
        """Record the first of equal reports, as from a loop, and then each time that their number has doubled."""
        self._counts[case] += 1
        count = self._counts[case]
        if count & (count - 1) == 0:
            entry.event(str(case[0]), count=count, **data)


def _held(arrays: Sequence[Array]) -> list[bytes]:
    return [array.tobytes() for array in arrays]


def _share(mine: Sequence[Array], others: Sequence[Array]) -> bool:
    return any(_overlap(one, other) for one in mine for other in others)


def _overlap(one: Array, other: Array) -> bool:
    try:
        return bool(np.shares_memory(one, other, max_work=_MOST_WORK))  # type: ignore[arg-type]  # numpy's stubs know two special values
    except np.exceptions.TooHardError:
        return bool(np.may_share_memory(one, other))


def _owner(array: Array) -> Array:
    """The array that owns the memory."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array
