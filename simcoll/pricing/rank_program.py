"""A rank's program reconstructed from its record: calls, waits, and the compute time before each.

*Compute* is all the time between two calls of a rank in which no call of it was blocking. A call *blocks* if it was
synchronous and the rank made no other call before it ended. An asynchronous call is waited for where its record shows
it: when the rank began to wait, where that was written down, or else before the first call that the rank made after the
recorded end. Where the record does not show it (the future was handed on, there is no end) the wait is taken to be at
the end of the step, or before the next call of its group whose wait is known, or at the end of the trace, whichever
comes first.

Where a program repeats itself, the steps of a training loop, is found in the sequence of its calls alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from simcoll.core.native import native
from simcoll.core.record import State
from simcoll.core.steps import LEAST_STEPS, Steps, call_tokens, period_of
from simcoll.core.trace import ASYNCHRONOUS, AWAITED, HANDED_ON, ON_DEVICE, SLOT, Slots, Trace, slots_key
from simcoll.core.waits import begins_burst
from simcoll.pricing.roofline import WorkBetween
from simcoll.verifier.agreement.columns import fingerprint


def steps_of(traces: Sequence[Trace], instances: Sequence[npt.NDArray[np.int32]]) -> tuple[Steps | None, ...]:
    """The steps of each rank, None where its calls do not repeat; calls that were not matched are passed over."""
    known: dict[bytes, Steps | None] = {}
    # Of ranks that are alike the bursts alone tell them apart, which are one byte a call.
    tokens_of: dict[object, bytes] = {}
    found = []
    for trace, own in zip(traces, instances, strict=True):
        whole = not (own < 0).any()
        slots = trace.slots if whole else trace.slots[own >= 0]
        alike = (slots_key(trace), fingerprint(begins_burst(slots))) if whole else id(own)
        if alike not in tokens_of:
            tokens = call_tokens(slots)
            key = tokens_of[alike] = fingerprint(tokens)
            if key not in known:
                steps = period_of(tokens)
                known[key] = None if steps is None else _turned(steps, _pauses(trace, own))
        found.append(known[tokens_of[alike]])
    return tuple(found)


def came_ns(slots: Slots) -> npt.NDArray[np.uint64]:
    """The time at which a rank came to each call: made it, or its device began it, where a device ran it.

    A host queues calls long before its device comes to them, so that its own times say nothing of what is between.
    """
    on_device = (slots["flags"] & ON_DEVICE) != 0
    found: npt.NDArray[np.uint64] = slots["scheduled_ns"]
    return np.where(on_device, slots["started_ns"], found) if on_device.any() else found


def _pauses(trace: Trace, own: npt.NDArray[np.int32]) -> npt.NDArray[np.float64]:
    """Seconds before each call since the one before was made, or had ended if it had."""
    slots = trace.slots[own >= 0]
    made, ended = came_ns(slots).astype(np.float64), slots["finished_ns"].astype(np.float64)
    before = np.where(ended[:-1] <= made[1:], np.maximum(made[:-1], ended[:-1]), made[:-1])
    return np.concatenate([[0.0], np.maximum(made[1:] - before, 0.0)]) / 1e9


def _turned(steps: Steps, pauses: npt.NDArray[np.float64]) -> Steps:
    """The same steps, from the call on before which the rank pauses longest; ranks with equal calls turn alike."""
    if steps.count <= LEAST_STEPS:
        return steps
    longest = int(np.median(pauses[steps.first : steps.stop].reshape(steps.count, steps.period), axis=0).argmax())
    return steps if longest == 0 else Steps(steps.first + longest, steps.period, steps.count - 1)


LAUNCH, BLOCK, WAIT = 0, 1, 2
"""The kinds of operations: begin a call and go on, begin it and wait for it, wait for an earlier one."""

_SECOND = 1e9
_LATEST = (1 << 62) - 1
"""A file may state any time; what is computed with it must fit 64 bits."""


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """One rank's operations: which kind, on which collective, after how many seconds of compute.

    ``place`` numbers the rank's calls from 0; a wait has the number of the call that it stands before. ``seen`` is
    False where the record has no times. ``work`` is what is done before each, where a dry run counted it.
    """

    kind: npt.NDArray[np.uint8]
    instance: npt.NDArray[np.int32]
    gap: npt.NDArray[np.float64]
    place: npt.NDArray[np.int32]
    seen: bool
    work: WorkBetween | None = None

    def __len__(self) -> int:
        return len(self.kind)


class Programs:
    """Works out the programs of a job's ranks; those of ranks that do the same in one order share what is equal."""

    def __init__(self) -> None:
        self._last: _Order | None = None
        self._after = np.zeros(0, np.int64)

    def of(self, trace: Trace, instances: npt.NDArray[np.int32], steps: Steps | None) -> Program:
        """The program of one rank, of the calls that were matched, in the order in which they were made."""
        matched = instances >= 0
        slots, own = (trace.slots, instances) if matched.all() else (trace.slots[matched], instances[matched])
        if (last := self._last) is not None and (followed := last.follow(slots)) is not None:
            return Program(last.kind, last.instance(own), followed[0], last.place, followed[1])
        made, ended = (np.minimum(one, _LATEST).view(np.int64) for one in (came_ns(slots), slots["finished_ns"]))
        blocks = _blocks(slots, made, ended)
        waits = _waits(slots, made, ended, blocks, steps, self._after)
        self._after = waits.after
        until = np.where(blocks, np.maximum(made, ended), made) if blocks.any() else made
        over, begun = np.concatenate([until, waits.over]), np.concatenate([made, waits.begun])
        order = self._last
        if order is None or (ordered := order.apply(blocks, waits, begun)) is None:
            order = self._last = _Order(blocks, waits, begun)
            ordered = begun[order.places]
        gaps = _gaps(ordered, over[order.places])
        return Program(order.kind, order.instance(own), gaps, order.place, bool((made > 0).any()))


@dataclass(frozen=True, slots=True, eq=False)
class _Waits:
    """Waits for the calls that do not block: before which call each stands, and the times (ns) at which it began, 0
    where nobody saw it, and let the rank go on; ``after`` is the first call that was made no earlier than that, or than
    the end of the call.
    """

    before: npt.NDArray[np.int64]
    begun: npt.NDArray[np.int64]
    over: npt.NDArray[np.int64]
    after: npt.NDArray[np.int64]


class _Order:
    """A rank's operations in order: ``places`` are those among all its calls and then all its waits."""

    def __init__(self, blocks: npt.NDArray[np.bool_], waits: _Waits, begun: npt.NDArray[np.int64]) -> None:
        self._blocks, self._before, self._seen = blocks, waits.before, waits.begun > 0
        calls = np.arange(len(blocks))
        # Waits stand before the call of the same place: the unseen ones directly behind the calls before it.
        rows = np.concatenate([4 * calls + 2, 4 * waits.before + self._seen])
        places = np.lexsort((begun, rows))
        self._fixed = np.diff(rows[places]) > 0
        self._in_turn = np.diff(places) > 0
        self.places: npt.NDArray[np.int64] | slice = places if len(waits.before) else slice(None)
        kinds = (np.where(blocks, BLOCK, LAUNCH), np.full(len(waits.before), WAIT))
        self.kind = np.concatenate(kinds).astype(np.uint8)[self.places]
        self.place = np.concatenate([calls, waits.before])[self.places].astype(np.int32)
        self._own: npt.NDArray[np.int32] | None = None
        self._instance = np.zeros(0, np.int32)
        self._compiled: _Compiled | None = None

    def follow(self, slots: Slots) -> tuple[npt.NDArray[np.float64], bool] | None:
        """The gaps between another rank's operations, and whether it has times, worked out in one step where that was
        compiled; None where not, where its operations may be in another order, and where a wait of it was not seen.
        """
        if len(slots) != len(self._blocks) or (module := native("simcoll.pricing._program")) is None:
            return None
        if self._compiled is None:
            ordered = None if isinstance(self.places, slice) else (self.places, self._fixed, self._in_turn)
            self._compiled = _Compiled(module, self._blocks, self._before, self._seen, ordered)
        return self._compiled.follow(slots)

    def apply(
        self, blocks: npt.NDArray[np.bool_], waits: _Waits, begun: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int64] | None:
        """The begins of another rank's operations in this order; None where its own would be another."""
        mine = (self._blocks, self._before, self._seen)
        if not all(map(np.array_equal, mine, (blocks, waits.before, waits.begun > 0))):
            return None
        ordered = begun[self.places]
        if isinstance(self.places, slice):
            return ordered
        later, earlier = ordered[1:], ordered[:-1]
        sound = self._fixed | (later > earlier) | ((later == earlier) & self._in_turn)
        return ordered if sound.all() else None

    def instance(self, own: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """The collective of each operation of a rank whose calls are on ``own``."""
        if self._own is None or not np.array_equal(own, self._own):
            self._own, self._instance = own, np.concatenate([own, own[~self._blocks]])[self.places]
        return self._instance


_FIELDS = "state", "flags", "scheduled_ns", "started_ns", "finished_ns", "wait_us"
_BITS = ASYNCHRONOUS, AWAITED, HANDED_ON, ON_DEVICE, State.COMPLETED


class _Compiled:
    """An order as ``_program.c`` takes it."""

    def __init__(
        self,
        module: Any,
        blocks: npt.NDArray[np.bool_],
        before: npt.NDArray[np.int64],
        seen: npt.NDArray[np.bool_],
        ordered: tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_], npt.NDArray[np.bool_]] | None,
    ) -> None:
        """``ordered`` has the places of operations, and which may stand there at any times, and at equal ones."""
        self._module = module
        self._dtype: np.dtype[Any] | None = None
        count, waits = len(blocks), len(before)
        self._size = count + waits
        # They have to live as long as their addresses are used.
        self._arrays = [*map(np.ascontiguousarray, (blocks, before, seen, *(ordered or ())))]
        self._arrays += [np.empty(size, np.int64) for size in (self._size, self._size, count)]
        addresses = [one.ctypes.data for one in self._arrays]
        addresses[3:3] = [] if ordered else [0, 0, 0]
        # What is another for each rank, where its slots and gaps are, is filled in later.
        fixed = [*_BITS, *addresses[:3], waits, *addresses[3:]]
        self._table = np.array([0] * (3 + len(_FIELDS)) + fixed + [0, 0], np.int64)

    def follow(self, slots: Slots) -> tuple[npt.NDArray[np.float64], bool] | None:
        """As `_Order.follow`."""
        if slots.dtype is not self._dtype:
            fields: Mapping[str, Any] = slots.dtype.fields or {}
            if any(name not in fields or fields[name][0] != SLOT[name] for name in _FIELDS):
                return None
            self._dtype, self._table[3 : 3 + len(_FIELDS)] = slots.dtype, [fields[name][1] for name in _FIELDS]
        gaps = np.empty(self._size)
        self._table[:3] = slots.ctypes.data, slots.strides[0], len(slots)
        self._table[-2] = gaps.ctypes.data
        return (gaps, bool(self._table[-1])) if self._module.follow(self._table.ctypes.data) else None


def _gaps(begun: npt.NDArray[np.int64], over: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Seconds from the moment at which the operations before let the rank go on to the begin of each."""
    if not len(over):
        return np.zeros(0)
    free = np.empty_like(over)
    free[0] = begun[0]
    np.maximum.accumulate(over[:-1], out=free[1:])
    seen = (begun > 0) & (free > 0)
    # In one place: arrays of a new size cost as much as what is put in them.
    gaps = np.subtract(begun, free, out=free)
    np.maximum(gaps, 0, out=gaps)
    if not seen.all():
        gaps[~seen] = 0
    found: npt.NDArray[np.float64] = gaps / _SECOND
    return found


def _blocks(slots: Slots, made: npt.NDArray[np.int64], ended: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    synchronous: npt.NDArray[np.bool_] = (slots["flags"] & ASYNCHRONOUS) == 0
    if not synchronous.any():
        return synchronous
    later = np.append(made[1:], np.iinfo(np.int64).max)
    # Clocks have a grain, and writing down takes a moment: a call made in the very instant of the end comes after it.
    blocks: npt.NDArray[np.bool_] = synchronous & ((ended == 0) | (later >= ended))
    return blocks


def _waits(
    slots: Slots,
    made: npt.NDArray[np.int64],
    ended: npt.NDArray[np.int64],
    blocks: npt.NDArray[np.bool_],
    steps: Steps | None,
    guess: npt.NDArray[np.int64],
) -> _Waits:
    """``guess`` is ``after`` of another rank, mostly that of this one too."""
    asked = np.flatnonzero(~blocks)
    # Where no call blocks, nothing is copied.
    own: npt.NDArray[np.int64] | slice = slice(None) if len(asked) == len(blocks) else asked
    end, latest = ended[own], np.maximum.accumulate(made)
    # Fields that lie apart are gathered before they are looked at several times.
    flags, wait_us = slots["flags"][own].copy(), slots["wait_us"][own].astype(np.int64)
    known = (end > 0) & (slots["state"][own] == State.COMPLETED)
    written = known & (wait_us > 0) & (flags & ON_DEVICE == 0)
    begun = np.where(written, made[own] + wait_us * 1000, 0)
    every = bool(written.all())
    after = _first_after(latest, begun if every else np.where(written, begun, end), guess)
    before = np.maximum(after, asked + 1)
    if every:
        return _Waits(before, begun, np.maximum(begun, end), after)
    told = known & (flags & (AWAITED | HANDED_ON) == AWAITED)
    # Where only the end is known, what the rank computed before its next call came before the wait.
    guessed = told & ~written & (before < len(made))
    begun[guessed] = made[before[guessed]]
    unseen = ~told & ~written
    if unseen.any():
        before[unseen] = _unseen(asked[unseen], slots["group"], steps)
    over = np.where(written, np.maximum(begun, end), begun)
    return _Waits(before, begun, over, after)


def _first_after(
    times: npt.NDArray[np.int64], asked: npt.NDArray[np.int64], guess: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """The place of the first of some ascending times that is no earlier than each asked for; a right guess is kept."""
    if len(guess) == len(asked) and int(guess.max(initial=0)) <= len(times):
        edges = np.concatenate([[-1], times, [np.iinfo(np.int64).max]])
        if (edges[guess] < asked).all() and (asked <= edges[guess + 1]).all():
            return guess
    return np.searchsorted(times, asked).astype(np.int64)


def _unseen(
    asked: npt.NDArray[np.int64],
    group: npt.NDArray[np.uint32],
    steps: Steps | None,
) -> npt.NDArray[np.int64]:
    """Before which call each is waited for where no record shows it: the end of the step, another call, the end."""
    last = np.full(len(asked), len(group), np.int64)
    if steps is not None:
        edges = np.append(steps.starts, steps.stop)
        after = np.searchsorted(edges, asked, side="right")
        last = np.where(after < len(edges), edges[np.minimum(after, len(edges) - 1)], last)
    for number in np.unique(group[asked]):
        mine = group[asked] == number
        other = group == number
        other[asked] = False
        others = np.append(np.flatnonzero(other), len(group))
        last[mine] = np.minimum(last[mine], others[np.searchsorted(others, asked[mine])])
    return last
