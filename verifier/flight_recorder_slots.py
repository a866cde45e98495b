"""A dump's entries as a trace's slots: the calls of a coalesced group put together, states and losses worked out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from simcoll.call import Call
from simcoll.record import State
from simcoll.spec import COLLECTIVES
from simcoll.verifier.flight_recorder_entries import Columns, Rows
from simcoll.verifier.trace import AWAITED, SLOT, Slots

_COALESCED: Final = "coalesced"
_LAST: Final = (1 << 32) - 1
_WITHOUT_EVENTS: Final = ("gloo",)
"""Backends that record no start and no end: an entry stays scheduled, and is retired when its call has ended."""


@dataclass(frozen=True, slots=True, eq=False)
class Ring:
    """The slots of a dump, the calls that they index, and what the ring no longer holds, by group index."""

    slots: Slots
    calls: list[Call]
    wrapped: bool
    untold: bool
    dropped: Mapping[int, int] = field(default_factory=dict)
    dropped_p2p: Mapping[int, int] = field(default_factory=dict)
    problems: tuple[str, ...] = ()


def slots_of(columns: Columns) -> Ring:
    """The entries of a dump as slots."""
    rows, calls = columns.rows(), list(columns.calls)
    rows, problems, gap = _sound(rows)
    backends = np.array([backend in _WITHOUT_EVENTS for backend in columns.backends], np.bool_)
    untold = backends[rows["call"]] & rows["retired"] if len(rows) else np.zeros(0, np.bool_)
    rows["state"][untold & (rows["state"] == State.SCHEDULED)] = State.COMPLETED
    wrapped = gap or bool(len(rows) and rows["record"][0] > 0)
    rows = _batches(rows, calls)
    numbers, first_p2p = _message_numbers(rows, wrapped=wrapped)
    slots = np.zeros(len(rows), SLOT)
    for name in ("group", "source", "state", "sequence", "scheduled_ns", "started_ns", "finished_ns"):
        slots[name] = rows[name]
    slots["signature"], slots["p2p_sequence"], slots["flags"] = rows["call"], numbers, AWAITED
    dropped = _dropped(slots)
    return Ring(slots, calls, wrapped, bool(untold.any()), dropped, first_p2p, tuple(problems))


def _sound(rows: Rows) -> tuple[Rows, list[str], bool]:
    """The entries after the last one that makes no sense, what to say of it, and whether there was one."""
    bad = ~rows["sound"] | (rows["sequence"] < 0) | (rows["sequence"] > _LAST)
    bad |= (rows["p2p_sequence"] < 0) | (rows["p2p_sequence"] > _LAST)
    for name in ("scheduled_ns", "started_ns", "finished_ns"):
        bad |= rows[name] < 0
    places = np.flatnonzero(bad)
    if not len(places):
        return rows, [], False
    problem = f"entry {places[-1]} makes no sense; the entries before it are left out"
    return rows[places[-1] + 1 :], [problem], True


def _batches(rows: Rows, calls: list[Call]) -> Rows:
    """One row for each coalesced call; messages of a batch get the state of the whole batch.

    NCCL records the calls between start and end of a coalesced group, which never change their state, and then the
    group as a whole, under the sequence numbers of its calls.
    """
    ends = np.array([_ends_batch(call) for call in calls], np.bool_)
    places = np.flatnonzero(ends[rows["call"]]) if len(rows) else np.zeros(0, np.intp)
    if not len(places):
        return rows
    keep = np.ones(len(rows), np.bool_)
    made: dict[tuple[int, ...], int] = {}
    for end in places.tolist():
        members = _members(rows, end)
        if members:
            _put_together(rows, members, end, keep, calls, made)
    return rows[keep]


def _ends_batch(call: Call) -> bool:
    return call.op == _COALESCED or call.spelling.endswith(f"_{_COALESCED}")


def _members(rows: Rows, end: int) -> list[int]:
    """The rows of the group that a row ends, in order."""
    members: list[int] = []
    place = end - 1
    last = rows[end]
    while place >= 0 and rows["group"][place] != last["group"]:
        # Another thread may have recorded a call of another group in between.
        place -= 1
    while place >= 0 and rows["group"][place] == last["group"] and _same_batch(rows[place], last):
        members.append(place)
        place -= 1
    return members[::-1]


def _same_batch(row: npt.NDArray[np.void], end: npt.NDArray[np.void]) -> bool:
    column = "p2p_sequence" if row["p2p"] else "sequence"
    untold = row["state"] == State.SCHEDULED
    return bool(untold and row["p2p"] == end["p2p"] and row[column] == end[column])


def _put_together(
    rows: Rows,
    members: list[int],
    end: int,
    keep: npt.NDArray[np.bool_],
    calls: list[Call],
    made: dict[tuple[int, ...], int],
) -> None:
    if rows["p2p"][end]:
        keep[end] = False
        for name in ("state", "started_ns", "finished_ns", "retired"):
            rows[name][members] = rows[name][end]
        return
    keep[members] = False
    key = (*rows["call"][members].tolist(), int(rows["call"][end]))
    if key not in made:
        made[key] = len(calls)
        calls.append(_joined([calls[index] for index in key[:-1]], calls[key[-1]]))
    rows["call"][end] = made[key]
    if not rows["source"][end]:
        rows["source"][end] = rows["source"][members[0]]


def _joined(parts: list[Call], end: Call) -> Call:
    """Calls of one kind as one; a mixture under the name of the group, which no table knows."""
    inputs = tuple(buffer for part in parts for buffer in part.inputs)
    outputs = tuple(buffer for part in parts for buffer in part.outputs)
    ops = {part.op for part in parts} | ({end.op} if end.op in COLLECTIVES else set())
    op = ops.pop() if len(ops) == 1 else f"{_COALESCED}: {', '.join(sorted(ops))}"
    return Call(op, parts[0].spelling, inputs, outputs, coalesced=len(parts) > 1)


def _message_numbers(rows: Rows, *, wrapped: bool) -> tuple[npt.NDArray[np.int64], dict[int, int]]:
    """Sends and receives numbered one by one in each group, and what went before them.

    All messages of a batch share a number of torch's.
    """
    numbers = np.zeros(len(rows), np.int64)
    before: dict[int, int] = {}
    for group in np.unique(rows["group"][rows["p2p"]]).tolist():
        places = np.flatnonzero(rows["p2p"] & (rows["group"] == group))
        first = int(rows["p2p_sequence"][places[0]])
        # Versions that share one count with the collectives have a first message of any number.
        lost = max(first - 1, 0) if wrapped else 0
        numbers[places] = lost + 1 + np.arange(len(places))
        if wrapped:
            before[group] = max(lost, 1)
    return numbers, before


def _dropped(slots: Slots) -> dict[int, int]:
    """The last collective of each group that the ring no longer holds."""
    collective = slots[slots["p2p_sequence"] == 0]
    dropped = {}
    for group in np.unique(collective["group"]).tolist():
        first = int(collective["sequence"][collective["group"] == group][0])
        if first > 1:
            dropped[group] = first - 1
    return dropped
