"""The values of a simulated rank's calls: digests of its arrays, as :mod:`simcoll.values.tensors` has of tensors."""

from __future__ import annotations

from collections.abc import Sequence

from simcoll.blackbox.memory_box import MemoryBox
from simcoll.spec.call import Call
from simcoll.spec.semantics import Array
from simcoll.values.arrays import applies, digest_arrays
from simcoll.values.choice import Choice
from simcoll.values.faults import DueFaults


class RankValueChecks:
    """The choice of the calls of a rank whose values are checked, and the faults that a scenario has for it."""

    def __init__(self, values: str) -> None:
        self.choice = None if values == "off" else Choice(values)
        self.faults = DueFaults()

    def begin(self, call: Call, group_rank: int, group_size: int, group: int, sequence: int) -> SimulatedValues | None:
        """The values of a call that is made; None for one that is not checked. ``group`` is its index in the box."""
        if self.choice is None or call.peer is not None or not self.choice.takes(sequence):
            return None
        return SimulatedValues(self, call, group_rank, group_size, group, sequence)


class SimulatedValues:
    """The values of one call."""

    def __init__(
        self, rank: RankValueChecks, call: Call, group_rank: int, group_size: int, group: int, sequence: int
    ) -> None:
        self._rank, self._call = rank, call
        self._place = group_rank, group_size, sequence
        self._group, self._sequence = group, sequence
        self._sides: dict[str, object] = {}

    def sent(self, inputs: Sequence[Array]) -> None:
        """Digest the data that the call sends, when it runs."""
        self._digest("sent", inputs)

    def received(self, outputs: Sequence[Array]) -> None:
        """Digest the result of the call."""
        if applies(self._call, self._place[0], sent=False):
            self._rank.faults.apply(outputs)
        self._digest("received", outputs)

    def _digest(self, side: str, arrays: Sequence[Array]) -> None:
        if (found := digest_arrays(self._call, *self._place, arrays, sent=side == "sent")) is not None:
            self._sides[side] = found

    def write(self, box: MemoryBox) -> None:
        """Write the digests down, when the call has ended well."""
        box.event("values", group=self._group, sequence=self._sequence, **self._sides)
