"""One Flight Recorder dump as a value: the content of one rank's file, before the files of a job are put together.

A dump's entries as a trace's slots: the calls of a coalesced group put together, states and losses inferred.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from simcoll.core.record import Source, State
from simcoll.core.trace import AWAITED, SLOT, Slots
from simcoll.errors import UnreadableError
from simcoll.spec.call import Call
from simcoll.spec.collectives import COLLECTIVES
from simcoll.verifier.flight_recorder.entries import EntryColumns, Rows

_COALESCED: Final = "coalesced"
_LAST: Final = (1 << 32) - 1
_LOST: Final = (
    "batches of messages took numbers of collectives, and the ring wrapped: "
    "the collectives of the groups that have such batches are not judged"
)
_FIRST_TENSOR_ONLY: Final = 4
"""The last minor version in which, before PyTorch's pull request 135049, of a list its first tensor is recorded."""
_CUT: Final = "this version of torch records the first tensor alone of a list: sizes of such calls are not judged"
_WITHOUT_EVENTS: Final = ("gloo",)
"""Backends that record no start and no end: an entry stays scheduled, and is retired when its call has ended. They do
not record sends and receives either."""


@dataclass(frozen=True, slots=True, eq=False)
class DumpedRing:
    """The slots of a dump, the calls that they index, and the calls that the ring has lost, by group index.

    ``unstated`` are the fields that this backend does not record, beside those that no dump states.
    """

    slots: Slots
    calls: list[Call]
    wrapped: bool
    unstated: frozenset[str]
    dropped: Mapping[int, int] = field(default_factory=dict)
    dropped_p2p: Mapping[int, int] = field(default_factory=dict)
    problems: tuple[str, ...] = ()


def slots_of(columns: EntryColumns, minor: int) -> DumpedRing:
    """The entries of a dump of version 2.``minor`` as slots."""
    calls = list(columns.calls)
    rows, problems, gap = _sound(columns.rows(), calls)
    if minor <= _FIRST_TENSOR_ONLY and (cut := _lists_cut(columns)):
        calls = [replace(call, inputs=(), outputs=()) if index in cut else call for index, call in enumerate(calls)]
        problems.append(_CUT)
    backends = np.array([backend in _WITHOUT_EVENTS for backend in columns.backends], np.bool_)
    silent = backends[rows["call"]] if len(rows) else np.zeros(0, np.bool_)
    untold = silent & rows["retired"]
    unstated = ["state"] * bool(untold.any()) + ["messages"] * bool(silent.any() and not rows["p2p"].any())
    rows["state"][untold & (rows["state"] == State.SCHEDULED)] = State.COMPLETED
    wrapped = gap or bool(len(rows) and rows["record"][0] > 0)
    rows, taken = _batches(rows, calls, wrapped=wrapped)
    rows, lost = _renumbered(rows, taken, wrapped=wrapped)
    problems += [_LOST] if lost else []
    numbers, first_p2p = _message_numbers(rows, wrapped=wrapped)
    slots = np.zeros(len(rows), SLOT)
    for name in ("group", "source", "state", "sequence", "scheduled_ns", "started_ns", "finished_ns"):
        slots[name] = rows[name]
    slots["signature"], slots["p2p_sequence"], slots["flags"] = rows["call"], numbers, AWAITED
    # Calls that are not recorded leave gaps too: only what a ring once held can be overwritten.
    dropped = {**(_dropped(slots, gap=gap) if wrapped else {}), **dict.fromkeys(lost, _LAST)}
    return DumpedRing(slots, calls, wrapped, frozenset(unstated), dropped, first_p2p, tuple(problems))


def _lists_cut(columns: EntryColumns) -> set[int]:
    """The calls that take a list for all ranks, of which only the first tensor was recorded: no size is known."""
    listed = {name for name, spec in COLLECTIVES.items() if spec.law_reads}
    told = zip(columns.calls, columns.backends, strict=True)
    return {index for index, (call, backend) in enumerate(told) if call.op in listed and backend not in _WITHOUT_EVENTS}


def _sound(rows: Rows, calls: Sequence[Call]) -> tuple[Rows, list[str], bool]:
    """The entries that can be judged, the notes on the others, and True if calls before them may be lost.

    Where the group of an invalid entry is not known, the entries before it are left out as well.
    """
    bad = ~rows["sound"] | (rows["sequence"] < 0) | (rows["sequence"] > _LAST)
    bad |= (rows["p2p_sequence"] < 0) | (rows["p2p_sequence"] > _LAST)
    for name in ("scheduled_ns", "started_ns", "finished_ns"):
        bad |= rows[name] < 0
    places = np.flatnonzero(bad)
    if not len(places):
        return rows, [], False
    last = int(places[-1])
    if _placed(rows, bad, calls):
        more = f" (and {len(places) - 1} before it)" if len(places) > 1 else ""
        return rows[~bad], [f"entry {last} makes no sense{more}; {len(places)} of {len(rows)} entries left out"], False
    problem = f"entry {last} makes no sense; the {last} entries before it are left out as well"
    return rows[last + 1 :], [problem], True


def _placed(rows: Rows, bad: npt.NDArray[np.bool_], calls: Sequence[Call]) -> bool:
    """True if the gaps in groups' numbers show that each bad entry was a collective, and between which two it was.

    Messages and batches of calls share numbers, and a group made again counts anew: then the gaps do not show it.
    """
    sound = np.flatnonzero(~bad)
    kept = rows[sound]
    if not len(kept) or kept["p2p"].any() or any(map(_ends_batch, calls)):
        return False
    before, lacking = np.cumsum(bad), 0
    for group in np.unique(kept["group"]).tolist():
        mine = sound[kept["group"] == group]
        skipped = np.diff(rows["sequence"][mine]) - 1
        if (skipped < 0).any() or (skipped > np.diff(before[mine])).any():
            return False
        lacking += int(skipped.sum())
    return lacking == int(bad.sum())


def _batches(rows: Rows, calls: list[Call], *, wrapped: bool) -> tuple[Rows, dict[int, set[int]]]:
    """One row for each coalesced call, and the sequence numbers that batches of messages took, by group.

    NCCL records the calls between start and end of a coalesced group, which never change their state, and then the
    group as a whole under the same numbers. So messages get the state of their batch; collectives become one.
    """
    ends = np.array([_ends_batch(call) for call in calls], np.bool_)
    if not len(rows) or not ends[rows["call"]].any():
        return rows, {}
    # Another thread may have recorded a call of another group in between.
    order = np.argsort(rows["group"], kind="stable")
    rows = rows[order]
    begins = _begins(rows, "group", "sequence", "p2p_sequence")
    first = np.flatnonzero(begins)
    last = np.append(first[1:], len(rows)) - 1
    batches = ends[rows["call"][last]] & (last > first)
    messages = batches & rows["p2p"][first]
    keep = np.ones(len(rows), np.bool_)
    keep[last[messages]] = False
    _give_state(rows, messages, begins, last)
    # The first calls of a group's first batch may be overwritten in a ring that wrapped.
    cut = wrapped & ends[rows["call"][last]] & ~rows["p2p"][first] & _begins(rows[first], "group")
    for run in np.flatnonzero(cut).tolist():
        keep[first[run] : last[run] + 1] = False
    made: dict[tuple[int, ...], int] = {}
    for run in np.flatnonzero(batches & ~messages & ~cut).tolist():
        _put_together(rows, slice(int(first[run]), int(last[run])), calls, made)
        keep[first[run] : last[run]] = False
    taken: dict[int, set[int]] = {}
    for place in first[messages & (rows["sequence"][first] > _before(rows, first, wrapped=wrapped))].tolist():
        taken.setdefault(int(rows["group"][place]), set()).add(int(rows["sequence"][place]))
    return rows[keep][np.argsort(order[keep], kind="stable")], taken


def _begins(rows: Rows, *names: str) -> npt.NDArray[np.bool_]:
    """A mask of the rows that differ in one of these columns from the row before."""
    begins = np.ones(len(rows), np.bool_)
    columns: list[npt.NDArray[np.int64]] = [rows[name] for name in names]
    begins[1:] = np.any([column[1:] != column[:-1] for column in columns], axis=0)
    return begins


def _before(rows: Rows, first: npt.NDArray[np.intp], *, wrapped: bool) -> npt.NDArray[np.int64]:
    """The sequence number that the group had before each of these rows: the row's own where that is not known."""
    sequences: npt.NDArray[np.int64] = rows["sequence"]
    groups: npt.NDArray[np.int64] = rows["group"]
    same = (first > 0) & (groups[first - 1] == groups[first])
    return np.where(same, sequences[first - 1], sequences[first] if wrapped else 0)


def _ends_batch(call: Call) -> bool:
    return call.op == _COALESCED or call.spelling.endswith(f"_{_COALESCED}")


def _give_state(
    rows: Rows, messages: npt.NDArray[np.bool_], begins: npt.NDArray[np.bool_], last: npt.NDArray[np.intp]
) -> None:
    """Give messages the state of their batch."""
    run = np.cumsum(begins) - 1
    for name in ("state", "started_ns", "finished_ns", "retired"):
        column: npt.NDArray[np.generic] = rows[name]
        rows[name] = np.where(messages[run], column[last[run]], column)


def _put_together(rows: Rows, members: slice, calls: list[Call], made: dict[tuple[int, ...], int]) -> None:
    """Make the row that ends a batch of collectives that of one call with all their buffers."""
    end = members.stop
    key = (*rows["call"][members].tolist(), int(rows["call"][end]))
    if key not in made:
        made[key] = len(calls)
        calls.append(_joined([calls[index] for index in key[:-1]], calls[key[-1]]))
    rows["call"][end] = made[key]
    if not rows["source"][end]:
        rows["source"][end] = rows["source"][members.start]


def _joined(parts: list[Call], end: Call) -> Call:
    """Calls of one kind as one; a mixture under the name of the group, which is in no table."""
    inputs = tuple(buffer for part in parts for buffer in part.inputs)
    outputs = tuple(buffer for part in parts for buffer in part.outputs)
    ops = {part.op for part in parts} | ({end.op} if end.op in COLLECTIVES else set())
    op = ops.pop() if len(ops) == 1 else f"{_COALESCED}: {', '.join(sorted(ops))}"
    return Call(op, parts[0].spelling, inputs, outputs, coalesced=True)


def _renumbered(rows: Rows, taken: Mapping[int, set[int]], *, wrapped: bool) -> tuple[Rows, list[int]]:
    """Collectives counted without the numbers that batches of messages took, and the groups where that is impossible.

    Older versions count a batch of messages as a collective, though only some ranks of the group may have one.
    """
    lost = []
    for group, numbers in taken.items():
        mine = rows["group"] == group
        used = np.unique(rows["sequence"][mine & ~rows["p2p"]])
        free = np.setdiff1d(np.array(sorted(numbers)), used)
        if not len(free) or not len(used):
            continue
        if wrapped:
            lost.append(group)
            rows = rows[~mine | rows["p2p"]]
        else:
            rows["sequence"][mine] -= np.searchsorted(free, rows["sequence"][mine], "right")
    return rows, lost


def _message_numbers(rows: Rows, *, wrapped: bool) -> tuple[npt.NDArray[np.int64], dict[int, int]]:
    """Sends and receives numbered one by one in each group, and the numbers before them.

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


def _dropped(slots: Slots, *, gap: bool) -> dict[int, int]:
    """The last collective of each group that a ring which has wrapped no longer holds.

    A group that begins with its first may have had an earlier life, of which nothing is left; the end of that life is
    not known where damage took it.
    """
    collective = slots[slots["p2p_sequence"] == 0]
    dropped = {}
    for group in np.unique(collective["group"]).tolist():
        first = int(collective["sequence"][collective["group"] == group][0])
        dropped[group] = first - 1 if first > 1 else _LAST if gap else 0
    return dropped


MAJOR: Final = 2
NEWEST: Final = 11
"""Versions of the format that are known: 2.0 to 2.11. Minor versions add fields, major ones change them."""

UNKNOWN: Final = frozenset({"reduce_op", "root", "input_splits", "output_splits", "tag", "device", "order"})
"""The fields of a call that no dump states."""

_GROUPS_LIMIT: Final = 1 << 14
_RANKS_LIMIT: Final = 1 << 20
_MEMBERS_LIMIT: Final = 1 << 22
"""Members of all groups of one dump together."""
_VERSION: Final = re.compile(r"(\d{1,6})\.(\d{1,6})")
_ALL: Final = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class DumpGroup:
    """A group that a dump knows; ``ranks`` are its global ranks, or nothing where the dump does not say them."""

    name: str
    description: str
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Dump:
    """The content of one file; ``rank`` is the global rank where the file states it.

    ``slots``, ``calls``, ``sources`` and ``dropped`` are as a trace has them, by the index of ``groups``. Times are
    nanoseconds of the wall clock. ``world_size`` is the number of ranks that its groups need, 0 where it names no
    ranks. ``complete`` is False for a file whose end is missing: the rank has gone on after the entries that are left.
    """

    path: str
    rank: int | None
    version: str
    groups: tuple[DumpGroup, ...]
    calls: tuple[Call, ...]
    sources: tuple[Source, ...]
    slots: Slots
    dropped: Mapping[int, int]
    dropped_p2p: Mapping[int, int]
    unknown: frozenset[str]
    seen_ns: int
    complete: bool
    problems: tuple[str, ...]
    world_size: int = 0


def assemble(
    path: str, found: Mapping[object, object], columns: EntryColumns, written_ns: int, problems: Sequence[str]
) -> Dump:
    """A dump from its outermost values and its entries; raises :class:`UnreadableError` for another format."""
    version, notes = _version(path, found.get("version"))
    configured = _configuration(path, found.get("pg_config"))
    groups = _groups(configured, columns)
    ring = slots_of(columns, int(version.partition(".")[2] or NEWEST))
    last = int(ring.slots["scheduled_ns"].max(initial=0))
    return Dump(
        path,
        _rank(found),
        version,
        groups,
        tuple(ring.calls),
        columns.sources,
        ring.slots,
        {**ring.dropped, **_never_seen(ring, groups)},
        ring.dropped_p2p,
        UNKNOWN | ring.unstated,
        last if problems else max(last, written_ns),
        not problems,
        (*problems, *notes, *ring.problems),
        1 + max((rank for _, ranks in configured.values() for rank in ranks), default=-1),
    )


def _version(path: str, value: object) -> tuple[str, list[str]]:
    version = _VERSION.fullmatch(value) if isinstance(value, str) else None
    if version is None:
        return "", ["the dump does not say its version; it is read as the newest that is known"]
    if int(version[1]) != MAJOR:
        raise UnreadableError(
            f"{path}: is a Flight Recorder dump of version {version[0]}; versions {MAJOR}.0 to {MAJOR}.{NEWEST} are "
            "read, which torch 2.3 and newer write"
        )
    if int(version[2]) > NEWEST:
        return version[0], [f"the dump has version {version[0]}; what is newer in it than {MAJOR}.{NEWEST} is not read"]
    return version[0], []


def _rank(found: Mapping[object, object]) -> int | None:
    for name in ("global_rank", "rank"):
        value = found.get(name)
        if isinstance(value, str) and value.isdecimal() and len(value) < 8:
            value = int(value)
        if type(value) is int and 0 <= value < _RANKS_LIMIT:
            return value
    return None


def _groups(configured: Mapping[str, tuple[str, tuple[int, ...]]], columns: EntryColumns) -> tuple[DumpGroup, ...]:
    """The groups of the entries, in their order, and those that only the configuration knows, by a name."""
    groups = [
        DumpGroup(name, description, configured.get(name, ("", ()))[1]) for name, description in columns.groups.items()
    ]
    known = {"", *(group.name for group in groups)}
    rest = [DumpGroup(name, about[0], about[1]) for name, about in configured.items() if name not in known]
    return (*groups, *(group for group in rest if group.ranks))


def _configuration(path: str, value: object) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Description and members by group name; an invalid entry is left out."""
    known: dict[str, tuple[str, tuple[int, ...]]] = {}
    # A pickle can give many groups one list.
    members: dict[int, tuple[int, ...]] = {}
    total = 0
    for key, about in list(value.items())[:_GROUPS_LIMIT] if isinstance(value, dict) else ():
        if not isinstance(key, str) or not isinstance(about, dict):
            continue
        description = about.get("desc", about.get("description", ""))
        stated = about.get("ranks")
        ranks = members[id(stated)] if id(stated) in members else members.setdefault(id(stated), _members(stated))
        known[key] = description if isinstance(description, str) else "", ranks
        total += len(ranks)
        if total > _MEMBERS_LIMIT:
            raise UnreadableError(f"{path}: its groups have more than {_MEMBERS_LIMIT} members, more than any job's")
    return known


def _members(value: object) -> tuple[int, ...]:
    """Global ranks out of ``"[0, 1]"`` or a list; nothing where they are not all sound and distinct."""
    if isinstance(value, str):
        inner = value.strip()[1:-1] if value.strip().startswith("[") and value.strip().endswith("]") else ""
        parts = [part.strip() for part in inner.split(",")]
        value = [int(part) for part in parts] if all(part.isdecimal() and len(part) < 8 for part in parts) else []
    ranks = tuple(value) if isinstance(value, (list, tuple)) else ()
    sound = all(type(rank) is int and 0 <= rank < _RANKS_LIMIT for rank in ranks)
    return ranks if sound and len(set(ranks)) == len(ranks) else ()


def _never_seen(ring: DumpedRing, groups: Sequence[DumpGroup]) -> dict[int, int]:
    """A ring that wrapped may have had calls of the groups of which it has none left."""
    if not ring.wrapped:
        return {}
    present = set(np.unique(ring.slots["group"]).tolist())
    return {index: _ALL for index in range(len(groups)) if index not in present}
