"""One Flight Recorder dump as a value: what one rank's file says, before the files of a job are put together."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from simcoll.core.record import Source
from simcoll.core.trace import Slots
from simcoll.errors import UnreadableError
from simcoll.spec.call import Call
from simcoll.verifier.flight_recorder.entries import EntryColumns
from simcoll.verifier.flight_recorder.slots import Ring, slots_of

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
    """What one file says; ``rank`` is the global rank where the file says it.

    ``slots``, ``calls``, ``sources`` and ``dropped`` are as a trace has them, by the index of ``groups``. Times are
    nanoseconds of the wall clock. ``world_size`` is how many ranks the groups need that it names, 0 where it names no
    ranks. ``complete`` is False for a file whose end is missing: the rank has gone on after what it tells.
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
    """Description and members by group name; an entry that makes no sense is left out."""
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


def _never_seen(ring: Ring, groups: Sequence[DumpGroup]) -> dict[int, int]:
    """A ring that wrapped may have had calls of the groups of which it has none left."""
    if not ring.wrapped:
        return {}
    present = set(np.unique(ring.slots["group"]).tolist())
    return {index: _ALL for index in range(len(groups)) if index not in present}
