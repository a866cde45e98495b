"""The interface of a black box as the recorder uses it, and a box that keeps nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from simcoll.blackbox.format import ABSENT
from simcoll.core.record import Group, Source, State
from simcoll.spec.call import Call

NO_TICKET = -1
"""The ticket of a record that was not written (no box, a closed one, a forked child)."""


@dataclass(slots=True)
class Slot:
    """One call as it is written down: the columns of :data:`simcoll.core.trace.SLOT`.

    ``group``, ``signature`` and ``source`` are indices that the box's methods of these names gave; a call whose
    ``state`` is STARTED runs at once. The box itself sets the times.
    """

    group: int
    sequence: int
    signature: int
    source: int
    p2p_sequence: int = 0
    state: State = State.SCHEDULED
    flags: int = 0
    scheduled_ns: int = 0
    started_ns: int = 0
    finished_ns: int = 0
    wait_us: int = 0


class CallSlots(Protocol):
    """The calls of a rank, open for writing; a ticket names one of them. One that a ring has passed is left alone."""

    def write(
        self, group: int, sequence: int, signature: int, source: int, p2p_sequence: int, state: State, flags: int, /
    ) -> int:
        """Write down that a call was made; the ticket that comes back names the record in later calls.

        The arguments are the fields of a :class:`Slot`, which would cost a call as much as the writing.
        """
        ...

    def advance(self, ticket: int, state: State = State.COMPLETED, /) -> None:
        """Write down the call's new state: it runs (STARTED), or has ended."""
        ...

    def ran_on_device(self, ticket: int, began_ns: int, ended_ns: int = 0, /) -> None:
        """Write down the times at which a device began and ended the call (0: it runs), unless the end of the call is
        written down already.

        No call begins before it is made: times that say so, as two clocks may, are put off as a whole.
        """
        ...

    def ended_on_device(self, ticket: int, /) -> None:
        """Write down that a device has ended the call, at an unknown time, unless its end is written down already."""
        ...

    def mark(self, ticket: int, flag: int, /) -> None:
        """Set a bit of the record's ``flags``."""
        ...

    def waits(self, ticket: int, flag: int, /) -> None:
        """Write down that the rank begins to wait for an asynchronous call, the first time; sets a bit of ``flags``."""
        ...

    def resign(self, ticket: int, signature: int, /) -> None:
        """Give the record another signature, with fields that were not known when the call was made."""
        ...

    def close(self) -> None:
        """Write no more."""
        ...


class Box(CallSlots, Protocol):
    """One rank's black box, open for writing until the rank ends by itself. Every thread of the rank may write."""

    def group(self, group: Group) -> int:
        """The index of a group that was just created."""
        ...

    def signature(self, call: Call) -> int:
        """The index of a call's signature."""
        ...

    def source(self, source: Source) -> int:
        """The index of a source line."""
        ...

    def event(self, kind: str, **data: object) -> None:
        """Write down something else that happened: see :class:`simcoll.core.record.Event`."""
        ...

    def step(self) -> None:
        """Write down that a training step has ended."""
        ...


class NoBox:
    """The box of a rank whose file could not be made: nothing is written down, and the job goes on."""

    def _no_index(self, *_: Any, **__: Any) -> int:
        return ABSENT

    def _no_ticket(self, *_: Any, **__: Any) -> int:
        return NO_TICKET

    def _nothing(self, *_: Any, **__: Any) -> None:
        """Nothing is written down."""

    group = signature = source = _no_index
    write = _no_ticket
    advance = ran_on_device = ended_on_device = mark = waits = resign = event = step = close = _nothing
