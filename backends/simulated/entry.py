"""The record of one call of a simulated rank while it runs."""

from __future__ import annotations

from dataclasses import replace

from simcoll.backends.engine.tickets import RefusedCallError, RefusedPeerError, Ticket
from simcoll.backends.engine.virtual_time import nanoseconds
from simcoll.blackbox.memory_box import MemoryBox
from simcoll.core.record import Group, Source, State, source_document
from simcoll.errors import CollectiveMismatchError
from simcoll.spec.call import ANY_SOURCE, Call


class SimulatedEntry:
    """A call's entry in the rank's black box: ``number`` is that of the record, ``sequence`` that of the call."""

    __slots__ = ("_box", "group", "line", "number", "sequence", "ticket")

    def __init__(self, box: MemoryBox, group: Group, line: Source, sequence: int, number: int) -> None:
        self._box = box
        self.group = group
        self.line = line
        self.sequence = sequence
        self.number = number
        self.ticket: Ticket

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
