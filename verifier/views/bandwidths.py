"""How fast devices ran collectives: bus bandwidth, from the times that devices gave.

A rank that comes early to a collective is inside until the last one has come. So the time of a collective is the
shortest that any of its ranks was inside: whoever came last waited for nobody. Bus bandwidth is that of nccl-tests: the
row's factor times the larger side of the call, by that time (:attr:`simcoll.spec.table.CollectiveSpec.traffic`). Host
times say nothing of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from simcoll.core.record import State
from simcoll.core.trace import ON_DEVICE
from simcoll.spec.call import Call, bytes_of
from simcoll.spec.collectives import COLLECTIVES
from simcoll.verifier.agreement.columns import GroupColumns, Part
from simcoll.verifier.findings.overview import Bandwidth

_Inside: TypeAlias = tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]
"""Positions of one rank's collectives that its device has ended, and the rows of its trace."""

_Kind: TypeAlias = tuple[str, int, str, int]
"""Op, bytes, description of the group, its size."""


def bandwidths(groups: Sequence[GroupColumns]) -> tuple[Bandwidth, ...]:
    """The collectives of each op and size in groups of each kind; those that took most time in all come first."""
    found: dict[_Kind, list[tuple[GroupColumns, npt.NDArray[np.uint32], npt.NDArray[np.float64]]]] = {}
    for columns in groups:
        for kind, sequences, seconds in _of_group(columns):
            found.setdefault(kind, []).append((columns, sequences, seconds))
    rows = [_together(kind, parts) for kind, parts in found.items()]
    return tuple(sorted(rows, key=lambda row: (-row.seconds * row.calls, row.op, row.bytes)))


def on_device(part: Part) -> npt.NDArray[np.bool_]:
    """Which of a rank's collectives ran by themselves between two times that its device gave.

    Calls that were coalesced have both times in common, which are those of none of them.
    """
    slots, rows = part.trace.slots, part.rows
    mask = ((slots["flags"][rows] & ON_DEVICE) != 0) & (slots["state"][rows] == State.COMPLETED)
    began, ended = slots["started_ns"][rows], slots["finished_ns"][rows]
    shared = (began[1:] == began[:-1]) & (ended[1:] == ended[:-1])
    mask[1:] &= ~shared
    mask[:-1] &= ~shared
    kept: npt.NDArray[np.bool_] = mask & (ended > began)
    return kept


def _of_group(
    columns: GroupColumns,
) -> list[tuple[_Kind, npt.NDArray[np.uint32], npt.NDArray[np.float64]]]:
    """Positions and seconds of each kind of collective that the devices of all members have ended."""
    if len(columns.parts) != len(columns.group.ranks) or len(columns.parts) < 2:
        return []
    masks = [on_device(part) for part in columns.parts]
    if not all(mask.any() for mask in masks):
        return []
    known = [
        (part.sequences[mask], part.rows[mask].astype(np.int64))
        for part, mask in zip(columns.parts, masks, strict=True)
    ]
    common = known[0][0]
    for sequences, _ in known[1:]:
        common = common if np.array_equal(sequences, common) else np.intersect1d(common, sequences)
    if not len(common):
        return []
    shortest, size = _shortest(columns, known, common)
    first = columns.parts[0].trace
    ops = [call.op for call in first.signatures]
    signatures = first.slots["signature"][_rows(known[0], common)]
    names = np.array([ops.index(op) for op in ops] or [0])[signatures]
    return [
        ((ops[name], number, columns.group.description, len(columns.group.ranks)), common[mine], shortest[mine])
        for name, number in sorted(set(zip(names.tolist(), size.tolist(), strict=True)))
        if number > 0 and ops[name] in COLLECTIVES and (mine := (names == name) & (size == number)).any()
    ]


def _rows(known: _Inside, common: npt.NDArray[np.uint32]) -> npt.NDArray[np.int64]:
    sequences, rows = known
    return rows if len(sequences) == len(common) else rows[np.searchsorted(sequences, common)]


def _shortest(
    columns: GroupColumns, known: Sequence[_Inside], common: npt.NDArray[np.uint32]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """The shortest time that any rank was inside each collective, and its bytes: one rank after the other."""
    shortest, size = np.full(len(common), np.inf), np.zeros(len(common), np.int64)
    for part, own in zip(columns.parts, known, strict=True):
        slots = part.trace.slots[_rows(own, common)]
        shortest = np.minimum(shortest, (slots["finished_ns"] - slots["started_ns"]).astype(np.float64) / 1e9)
        sizes = np.array([_size(call) for call in part.trace.signatures] or [0], np.int64)
        size = np.maximum(size, sizes[slots["signature"]])
    return shortest, size


def _size(call: Call) -> int:
    """The larger of a call's two sides; 0 where a dtype's width is not known."""
    sides = bytes_of(call.inputs), bytes_of(call.outputs)
    return 0 if None in sides else min(max(sides[0] or 0, sides[1] or 0), 1 << 60)


def _together(
    kind: _Kind, parts: Sequence[tuple[GroupColumns, npt.NDArray[np.uint32], npt.NDArray[np.float64]]]
) -> Bandwidth:
    op, size, description, ranks = kind
    times = np.concatenate([seconds for _, _, seconds in parts])
    columns, sequences, seconds = max(parts, key=lambda part: float(part[2].max()))
    return Bandwidth(
        op,
        size,
        description,
        ranks,
        len(times),
        float(np.median(times)),
        COLLECTIVES[op].traffic(ranks) * size / float(np.median(times)),
        float(seconds.max()),
        columns.group,
        int(sequences[int(seconds.argmax())]),
    )
