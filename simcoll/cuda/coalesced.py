"""Calls between ``_start_coalescing`` and ``_end_coalescing``: a backend launches them at the end, as one.

The Works of the calls themselves show no end (NCCL never marks it), so the section's Work stands for all.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch.distributed import Work

from simcoll.core.record import State
from simcoll.cuda.timing import Timed
from simcoll.cuda.watcher import DeviceTimes
from simcoll.errors import MissingRankError
from simcoll.recorder.recorder import Entry
from simcoll.spec.call import Call

_OF_THE_GROUP = -1
"""The queue of the calls on the group's own communicator."""


class Section:
    """The calls of one section, written down together; stands for each of them until the section ends."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.timed: Timed | None = None
        self._held: list[object] = []

    def add(self, entry: Entry, tensors: Mapping[str, list[torch.Tensor]]) -> None:
        """A call was made in the section."""
        entry.timed = self
        self.entries.append(entry)
        self._held.append(tensors)

    def launch(self, times: DeviceTimes, inner: Work | None, timed: Timed | None) -> None:
        """The section was queued; ``timed`` is None where no device times its end."""
        held, self._held = self._held, []
        self.timed = timed
        if timed is None:
            for entry in self.entries:
                entry.timed = None
            return
        first = self.entries[0]
        times.queued(
            timed, (first.log, _OF_THE_GROUP), inner, held, marked_late=any(one.use.marked_late for one in self.entries)
        )

    @property
    def values(self) -> None:
        """The values of calls that run as one are not checked."""

    @property
    def call(self) -> Call:
        """The first call of the section."""
        return self.entries[0].call

    def ran_on_device(self, began_ns: int, ended_ns: int = 0) -> None:
        """The device began the section then, and ended it (0: it runs)."""
        for entry in self.entries:
            entry.ran_on_device(began_ns, ended_ns)

    def ended_on_device(self) -> None:
        """The device has ended it, at an unknown time."""
        for entry in self.entries:
            entry.ended_on_device()

    def awaited(self) -> None:
        """A thread begins to wait for it."""
        for entry in self.entries:
            entry.awaited()

    def handed_on(self) -> None:
        """Its future was taken."""
        for entry in self.entries:
            entry.handed_on()

    def held_up(self) -> None:
        """The rank begins to wait for its future."""
        for entry in self.entries:
            entry.held_up()

    def finished(self, state: State = State.COMPLETED) -> None:
        """It ended, as far as the host sees."""
        for entry in self.entries:
            entry.finished(state)

    def waited_for(self) -> None:
        """A thread has waited for it."""
        if self.timed is None:
            self.finished()
        else:
            self.timed.awaited()

    def failed(self, error: Exception) -> None:
        """It ended with an exception, which is that of its first call."""
        first, *others = self.entries
        first.failed(error)
        for entry in others:
            entry.finished(State.FAILED)

    def lacked(self, missing: MissingRankError) -> None:
        """Ranks did not come to it."""
        self.entries[0].lacked(missing)

    def received_from(self, group_rank: int) -> None:
        """Do nothing: no call of a section tells whose message it took."""
