"""Messages by the way that they take: the sends and receives of one lane, and an end that has no other one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from simcoll.core.record import Group, Record, State
from simcoll.core.trace import Trace

Rows = npt.NDArray[np.intp]
"""Rows of a trace's ``slots``."""

NO_ROWS: Rows = np.zeros(0, np.intp)


@dataclass(frozen=True, slots=True, eq=False)
class End:
    """One rank's sends to a peer, or its receives from it, in the order in which they were made."""

    trace: Trace
    rows: Rows

    def __len__(self) -> int:
        return len(self.rows)

    def states(self) -> npt.NDArray[np.uint8]:
        """How far each row came."""
        states: npt.NDArray[np.uint8] = self.trace.slots["state"][self.rows]
        return states

    def part(self, places: npt.NDArray[np.bool_] | slice) -> End:
        """Some of the rows, in the same order."""
        return End(self.trace, self.rows[places])

    def tags(self) -> npt.NDArray[np.int64]:
        """The tag of each row; 0 where none is stated."""
        signatures = self.trace.slots["signature"][self.rows]
        used, place = np.unique(signatures, return_inverse=True)
        tags = np.array([self.trace.signatures[int(index)].tag or 0 for index in used], np.int64)
        return tags[place]

    def devices(self) -> set[str]:
        """The device types of all buffers; empty texts where records do not state them."""
        used = np.unique(self.trace.slots["signature"][self.rows])
        calls = [self.trace.signatures[int(index)] for index in used]
        return {buffer.device for call in calls for buffer in (*call.inputs, *call.outputs)}


@dataclass(frozen=True, slots=True, eq=False)
class ChannelRecords:
    """The messages of one tag from one rank of a group to another; on NCCL those of all tags (``tag`` is None).

    ``sender`` and ``receiver`` are global ranks. ``ordered`` says that the n-th send meets the n-th receive for
    certain. ``open`` are the receiver's receives from any source, which may take these messages too, and have not said
    what they took. Of a lane that is not ``whole``, the ends are those that are not done.
    """

    group: Group
    sender: int
    receiver: int
    tag: int | None
    sends: End
    receives: End
    ordered: bool
    open: End
    whole: bool = True

    @property
    def paired(self) -> int:
        """How many messages have both ends."""
        return min(len(self.sends), len(self.receives))

    def sound(self) -> bool:
        """Whether nothing that is left over is done: a call that is done has met its other end."""
        left = [self.receives.part(slice(self.paired, None))]
        left += [] if len(self.open) else [self.left_sends()]
        return not any((end.states() == State.COMPLETED).any() for end in left)

    def left_sends(self) -> End:
        """The sends that no receive which names the sender has met."""
        return self.sends.part(slice(self.paired, None))


@dataclass(frozen=True, slots=True)
class Unmatched:
    """A send or receive (of a global rank) whose other end no rank has made. ``peer`` is None for any source.

    ``pending`` says that it has not ended, ``awaited`` that somebody waits for it, or did when it failed.
    """

    rank: int
    peer: int | None
    record: Record
    group: Group

    @property
    def pending(self) -> bool:
        """Whether it has neither ended nor failed."""
        return self.record.state in (State.SCHEDULED, State.STARTED)

    @property
    def awaited(self) -> bool:
        """Whether a thread waits for it, or has waited."""
        return self.record.awaited

    @property
    def peers(self) -> list[int]:
        """The ranks (global) of which one may have the other end."""
        return [rank for rank in self.group.ranks if rank != self.rank] if self.peer is None else [self.peer]

    @property
    def sends(self) -> bool:
        """Whether it is a send."""
        return self.record.call.op == "send"
