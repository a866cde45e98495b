"""One rank's program as a dry run wrote it down: launches, waits, and work between them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from simcoll.core.steps import Steps
from simcoll.core.trace import Trace
from simcoll.pricing.device_ops import EVENT, Key
from simcoll.pricing.rank_program import BLOCK, LAUNCH, WAIT, Program
from simcoll.pricing.roofline import NOTHING, PEAKS, OperatorWork, RooflineRates, WorkBetween, parse_work

_KINDS = {"l": LAUNCH, "s": LAUNCH, "w": WAIT}
_NOMINAL = RooflineRates(PEAKS["h100"].flops, PEAKS["h100"].memory)
"""For the spread of compute where its sum is given; otherwise the GPU of the topology decides."""


@dataclass(frozen=True, slots=True, eq=False)
class _Written:
    """The operations that a rank wrote (kind, row of the call, work before), and the calls made by each step's end."""

    kind: npt.NDArray[np.uint8]
    row: npt.NDArray[np.int64]
    work: tuple[OperatorWork, ...]
    between: WorkBetween
    gap: npt.NDArray[np.float64]
    marks: npt.NDArray[np.int64]


class DevicePrograms:
    """Makes programs of traces; what ranks have in common, as those that were filled in, is read once."""

    def __init__(self) -> None:
        self._read: dict[int, tuple[object, _Written | None]] = {}

    def program(self, trace: Trace, instances: npt.NDArray[np.int32]) -> tuple[Program, Steps | None] | None:
        """The program and the steps of one rank, of the calls that were matched; None where no work was counted."""
        if id(trace.events) not in self._read:
            self._read[id(trace.events)] = trace.events, _written(trace)
        found = self._read[id(trace.events)][1]
        if found is None:
            return None
        kept = instances[found.row] >= 0
        written = found if kept.all() else _without(found, kept)
        if not len(written.kind):
            return None
        calls = written.kind != WAIT
        place = (np.cumsum(calls) - calls).astype(np.int32)
        program = Program(
            written.kind, instances[written.row].astype(np.int32), written.gap, place, True, written.between
        )
        return program, _steps(written.marks, written.row[calls], trace)


def _written(trace: Trace) -> _Written | None:
    """Returns the operations that a rank wrote on the calls that its records show; None where there are none."""
    if not any(event.kind == EVENT for event in trace.events):
        return None
    names = [group.name for group in trace.groups]
    columns = (trace.slots[name].tolist() for name in ("group", "sequence", "p2p_sequence"))
    rows = {
        (names[group], *numbers): row
        for row, (group, *numbers) in enumerate(zip(*columns, strict=True))
        if group < len(names)  # a damaged record may name any group
    }
    operations: list[tuple[int, int, OperatorWork]] = []
    marks, calls = [], 0
    for kind, key, work in _operations(trace):
        if kind == "t":
            marks.append(calls)
        elif key in rows:
            row = rows[key]
            if kind == "w" and work is NOTHING and operations and operations[-1][:2] == (LAUNCH, row):
                operations[-1] = BLOCK, row, operations[-1][2]
                continue
            operations.append((_KINDS[kind], row, work))
            calls += kind != "w"
    return _columns(operations, marks) if operations else None


def _columns(operations: Sequence[tuple[int, int, OperatorWork]], marks: Sequence[int]) -> _Written:
    kind, row, work = zip(*operations, strict=True)
    between = WorkBetween.of(work)
    columns = np.array(kind, np.uint8), np.array(row, np.int64)
    return _Written(*columns, work, between, _NOMINAL.gaps(between), np.array(marks, np.int64))


def _without(found: _Written, kept: npt.NDArray[np.bool_]) -> _Written:
    """Without operations on calls that were not matched; their work stands before the next one."""
    operations, work = [], NOTHING
    for kind, row, own, stays in zip(found.kind.tolist(), found.row.tolist(), found.work, kept, strict=True):
        work = work.plus(own)
        if stays:
            operations.append((kind, row, work))
            work = NOTHING
    calls = np.append(0, np.cumsum(kept[found.kind != WAIT]))
    empty = np.zeros(0, np.uint8), np.zeros(0, np.int64), (), found.between, np.zeros(0), found.marks
    return _columns(operations, calls[found.marks].tolist()) if operations else _Written(*empty)


def _operations(trace: Trace) -> Iterator[tuple[str, Key | None, OperatorWork]]:
    """Operations, each with all the work before it; the end of a step has neither key nor work."""
    work = NOTHING
    for item in _ordered(trace):
        if item[0] == "c":
            work = work.plus(parse_work(item[1]))
        elif item[0] == "t":
            yield "t", None, NOTHING
        else:
            yield item[0], (item[1], item[2], item[3]), work
            work = NOTHING


def _ordered(trace: Trace) -> Iterator[list[Any]]:
    """The items in the order of the device: what side streams launch stands before the position that it names."""
    main: list[list[Any]] = []
    side: list[tuple[int, int, list[Any]]] = []
    for item in _items(trace):
        if item[0] == "s":
            side.append((item[4], len(side), item))
        else:
            main.append(item)
    side.sort(key=lambda each: each[:2])
    taken = 0
    for position, item in enumerate(main):
        while taken < len(side) and side[taken][0] <= position:
            yield side[taken][2]
            taken += 1
        yield item
    yield from (item for _, _, item in side[taken:])


def _items(trace: Trace) -> Iterator[list[Any]]:
    """Yields the well-formed items; a file may state anything, and other values are skipped."""
    for event in trace.events:
        items = event.data.get("items") if event.kind == EVENT else None
        for item in items if isinstance(items, list) else ():
            if isinstance(item, list) and item and _is_item(*item):
                yield item


def _is_item(kind: object, *rest: object) -> bool:
    if kind == "c":
        return len(rest) == 1 and isinstance(rest[0], list)
    if not isinstance(kind, str) or kind not in _KINDS:
        return kind == "t" and not rest
    fits = len(rest) == (4 if kind == "s" else 3) and isinstance(rest[0], str)
    return fits and all(type(number) is int and 0 <= number < 1 << 62 for number in rest[1:])


def _steps(marks: npt.NDArray[np.int64], rows: npt.NDArray[np.int64], trace: Trace) -> Steps | None:
    """The last steps of an optimiser that made the same calls; what comes before them may differ."""
    if len(marks) < 2:
        return None
    calls = trace.slots[["signature", "group"]][rows]
    parts = [calls[begin:stop].tolist() for begin, stop in pairwise(marks.tolist())]
    count = next((n for n, part in enumerate(reversed(parts)) if part != parts[-1]), len(parts))
    period = len(parts[-1])
    return Steps(int(marks[-1]) - period * count, period, count) if period else None
