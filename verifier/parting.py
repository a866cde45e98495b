"""Where ranks that end in different calls had come apart before: in calls that look alike, made from different lines.

A rank that skips a call goes on unnoticed while what it calls instead looks like what the others call. The finding is
on the first call that differs; the bug is where the lines did.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from simcoll.record import Record
from simcoll.verifier.align import UNKNOWN, Ints
from simcoll.verifier.columns import GroupColumns, Part
from simcoll.verifier.finding import Finding, Parting, Side
from simcoll.verifier.flows import SPLIT_MISMATCH
from simcoll.verifier.rules_fields import FIELD_RULES
from simcoll.verifier.rules_job import RANK_EXITED_EARLY
from simcoll.verifier.rules_order import CALL_SKIPPED, MISSING_RANK, ORDER_SWAPPED
from simcoll.verifier.shapes import LAYOUT_MISMATCH, SHAPE_MISMATCH
from simcoll.verifier.sides import lines
from simcoll.verifier.words import LINE

_WINDOW = 4096
"""Collectives before a finding that are looked at."""

_ASKED, _SIDES = 64, 8
"""Ranks of a side that are looked at, and sides of a finding."""

_EXPLAINED = (CALL_SKIPPED.code, ORDER_SWAPPED.code)
"""Findings that say by themselves where the ranks of their group came apart."""

_ASKING = frozenset(
    rule.code
    for rule in (*FIELD_RULES, SPLIT_MISMATCH, LAYOUT_MISMATCH, SHAPE_MISMATCH, MISSING_RANK, RANK_EXITED_EARLY)
)
"""Findings on a call in which ranks do not meet, which may be no more than what a call before has led to."""


def with_partings(findings: Sequence[Finding], columns: Sequence[GroupColumns]) -> tuple[Finding, ...]:
    """The findings; the first of each group says where the ranks had come apart, if they had before it."""
    lives: dict[object, list[GroupColumns]] = {}
    for one in columns:
        lives.setdefault(one.group, []).append(one)
    told: set[object] = {finding.group for finding in findings if finding.code in _EXPLAINED}
    found = []
    for finding in findings:
        if finding.code in _ASKING and finding.group not in told and len(lives.get(finding.group, ())) == 1:
            told.add(finding.group)
            found.append(replace(finding, parted=_parting(finding, lives[finding.group][0])))
        else:
            found.append(finding)
    return tuple(found)


def _parting(finding: Finding, columns: GroupColumns) -> Parting | None:
    """The first of the collectives right before a finding to which its sides came from different lines.

    Not where they always had, and not by lines by which they had come earlier and been together again: ranks may have
    lines of their own.
    """
    sides = sorted((side for side in finding.sides if side.ranks), key=lambda side: -len(side.ranks))[:_SIDES]
    parts = [_parts(columns, side) for side in sides]
    if finding.sequence is None or len(sides) < 2 or not all(parts):
        return None
    end = min(finding.sequence, *(int(part.sequences[-1]) + 1 for asked in parts for part in asked))
    meet = end == finding.sequence and all(side.call is not None for side in sides)
    if meet and not _apart(_lines(columns, parts, end, end + 1))[0]:
        # What they disagree about from one line has its cause there.
        return None
    first = max(max(int(part.sequences[0]) for asked in parts for part in asked), end - _WINDOW)
    place = _first_apart(_lines(columns, parts, first, end))
    return None if place is None else _told(sides, parts, first + place)


def _parts(columns: GroupColumns, side: Side) -> list[Part]:
    """The records of the first ranks of a side."""
    asked = set(side.ranks[:_ASKED])
    return [part for part in columns.parts if columns.group.ranks[part.group_rank] in asked]


def _lines(columns: GroupColumns, sides: Sequence[Sequence[Part]], first: int, end: int) -> list[Ints]:
    """For each side, the lines of its ranks (one row for those that are equal) from collective ``first`` on."""
    line_of = columns.words.features()[:, LINE]
    found = []
    for parts in sides:
        rows: dict[bytes, Ints] = {}
        for part in parts:
            inside = slice(*np.searchsorted(part.sequences, [first, end]).tolist())
            row = np.full(max(end - first, 0), UNKNOWN, np.int64)
            row[part.sequences[inside].astype(np.int64) - first] = line_of[part.tokens[inside]]
            rows.setdefault(row.tobytes(), row)
        found.append(np.stack(list(rows.values())))
    return found


def _apart(sides: Sequence[Ints]) -> npt.NDArray[np.bool_]:
    """At which collectives the first side came from other lines than each of the others."""
    main, known = sides[0], np.logical_and.reduce([(rows != UNKNOWN).all(axis=0) for rows in sides])
    together = [(main[:, None, :] == rows[None, :, :]).any(axis=(0, 1)) for rows in sides[1:]]
    return np.asarray(known & ~np.logical_or.reduce(together), np.bool_)


def _first_apart(sides: Sequence[Ints]) -> int | None:
    """Where the stretch begins that leads to the end of these lines with the sides apart; None where there is none."""
    apart = _apart(sides)
    together = np.flatnonzero(~apart)
    if not len(together):
        return None
    begin = int(together[-1]) + 1
    pairs = [column.tobytes() for column in np.ascontiguousarray(np.concatenate(sides).T)]
    usual = {pairs[place] for place in np.flatnonzero(apart[:begin]).tolist()}
    return next((place for place in range(begin, len(apart)) if pairs[place] not in usual), None)


def _told(sides: Sequence[Side], parts: Sequence[Sequence[Part]], sequence: int) -> Parting | None:
    """What each side called there, and from where; None where the records do not say."""
    found = []
    for side, asked in zip(sides, parts, strict=True):
        records = [(part.trace.rank, _record(part, sequence)) for part in asked]
        made = [(rank, record) for rank, record in records if record is not None]
        sources = lines((rank, record.source) for rank, record in made)
        if not sources:
            return None
        found.append(Side(side.ranks, made[0][1].call, sources))
    return Parting(sequence, tuple(found))


def _record(part: Part, sequence: int) -> Record | None:
    place = part.place(sequence)
    return None if place is None else part.record(place)
