"""Records the order in which a device's default stream would do compute, collectives and waits.

A rank's *device program* is what its default stream does. A collective that is launched from a side stream begins when
what that stream has waited for is done, which may be earlier in the device program than where the host launched it; of
one group, collectives keep the order in which the host launched them. The default stream waits for a collective where
it waits for the stream or the event behind it.

The items of the program, by their first value; a position counts items in the order in which they are written, side
launches left out:

* ``c``: compute: a list of dtype ("" where memory alone is used), intensity (log2 of FLOPs a byte), FLOPs, bytes;
* ``l``: the default stream launches a call: group, sequence number, p2p sequence number;
* ``s``: a side stream launches a call: the same, and the position before which it does;
* ``w``: the default stream waits for a call;
* ``t``: an optimiser has made a step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

EVENT = "device"
"""The kind of event that holds items."""

Key = tuple[str, int, int]
"""A call: its group, its sequence number, its p2p sequence number (0 for a collective)."""

Item = list[object]


@dataclass(frozen=True, slots=True)
class Reached:
    """The work that a stream has waited for: a position in the device program, and calls."""

    at: int = 0
    calls: frozenset[Key] = frozenset()

    def joined(self, other: Reached) -> Reached:
        """Both."""
        return Reached(max(self.at, other.at), self.calls | other.calls)


@dataclass(slots=True)
class DeviceOrder:
    """Builds the items; ``write`` takes those of one event."""

    write: Callable[[list[Item]], None]
    _items: list[Item] = field(default_factory=list)
    _position: int = 0
    _floor: int = 0
    _segment: dict[tuple[str, int], list[int]] = field(default_factory=dict)
    _last: dict[tuple[str, bool], int] = field(default_factory=dict)
    _open: dict[Key, None] = field(default_factory=dict)

    def compute(self, dtype: str, flops: int, size: int) -> None:
        """An operator: its FLOPs in a dtype ("" where there are none), the bytes that it reads and writes."""
        intensity = round(math.log2(max(flops, 1) / max(size, 1)))
        row = self._segment.setdefault((dtype, intensity if flops else 0), [0, 0])
        row[0] += flops
        row[1] += size

    def here(self) -> Reached:
        """Returns what the default stream has reached so far."""
        self._close()
        return Reached(self._position)

    def launch(self, key: Key, side: Reached | None = None) -> None:
        """A call is launched by the default stream, or by a side stream that has reached so much."""
        self._close()
        order = key[0], bool(key[2])
        if side is None:
            at = self._position
            self._add(["l", *key])
        else:
            at = max(side.at, self._floor, self._last.get(order, 0))
            self._items.append(["s", *key, at])
        self._last[order] = at
        self._open[key] = None
        self.flush()

    def wait(self, keys: Iterable[Key]) -> None:
        """The default stream waits for calls."""
        for key in [key for key in self._open if key in set(keys)]:
            self._close()
            self._add(["w", *key])
            del self._open[key]

    def hold(self) -> None:
        """The host waits for the default stream: what it launches from now on comes after."""
        self._close()
        self._floor = self._position

    def step(self) -> None:
        """An optimiser has made a step; nothing moves across it."""
        self._close()
        self._add(["t"])
        self._floor = self._position

    def end(self) -> None:
        """End the program: wait for every call that is still open."""
        self.wait(list(self._open))
        self._close()
        self.flush()

    def flush(self) -> None:
        """Write what there is."""
        if self._items:
            self.write(self._items)
            self._items = []

    def _close(self) -> None:
        if self._segment:
            rows = [[dtype, intensity, *sums] for (dtype, intensity), sums in self._segment.items()]
            self._segment = {}
            self._add(["c", rows])

    def _add(self, item: Item) -> None:
        self._items.append(item)
        self._position += 1
