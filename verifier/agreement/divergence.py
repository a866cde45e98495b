"""Finds where ranks diverged before a reported mismatch: in calls that look alike but have different lines.

A rank that skips a call goes on unnoticed while its next calls look like those of the others. The finding is
on the first call that differs; the bug is where the lines did.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from simcoll.verifier.agreement.alignment import LINE, STATEMENT, UNKNOWN, Ints, Words
from simcoll.verifier.agreement.columns import GroupColumns, Part
from simcoll.verifier.findings.finding import EarlierDivergence, Finding, Severity, Side, lines
from simcoll.verifier.findings.rules import (
    CALL_SKIPPED,
    FIELD_RULES,
    LAYOUT_MISMATCH,
    MISSING_RANK,
    ORDER_SWAPPED,
    RANK_EXITED_EARLY,
    SHAPE_MISMATCH,
    SPLIT_MISMATCH,
)

_WINDOW = 1024
"""Collectives before a finding that are looked at."""

_SIDES, _COURSES, _LINES = 8, 64, 4
"""Sides of a finding, ways in which the ranks of one went, and lines they came from, beyond which nothing is said."""

_LEAD = 8
"""Calls that a side may have skipped at the very start."""

_EXPLAINED = (CALL_SKIPPED.code, ORDER_SWAPPED.code)
"""Findings that say by themselves where the ranks of their group came apart."""

_ASKING = frozenset(
    rule.code
    for rule in (*FIELD_RULES, SPLIT_MISMATCH, LAYOUT_MISMATCH, SHAPE_MISMATCH, MISSING_RANK, RANK_EXITED_EARLY)
)
"""Findings on a call in which ranks do not meet, which may be only the consequence of an earlier call."""


def with_divergence(findings: Sequence[Finding], columns: Sequence[GroupColumns]) -> tuple[Finding, ...]:
    """The findings; the first error of each group has the earlier place where its ranks diverged, if there is one."""
    lives: dict[object, list[GroupColumns]] = {}
    for one in columns:
        lives.setdefault(one.group, []).append(one)
    reported: set[object] = {finding.group for finding in findings if finding.code in _EXPLAINED}
    found = []
    for finding in findings:
        asking = finding.code in _ASKING and finding.severity is Severity.ERROR and finding.group not in reported
        if asking and len(lives.get(finding.group, ())) == 1:
            reported.add(finding.group)
            told = lives[finding.group][0].by_stack()
            found.append(replace(finding, came_apart=_divergence(finding, told, _Features(told.words))))
        else:
            found.append(finding)
    return tuple(found)


class _Features:
    """The statement and the line of each token; :data:`UNKNOWN` stands for itself and for no line at all."""

    def __init__(self, words: Words) -> None:
        table = words.features()
        known = np.where(np.isin(table[:, LINE], words.nowhere()), UNKNOWN, table[:, LINE])
        # UNKNOWN is the last place of a table as well.
        self.line = np.append(known, UNKNOWN)
        self.statement = np.append(table[:, STATEMENT], UNKNOWN)


@dataclass(frozen=True, slots=True, eq=False)
class _Courses:
    """The different ways in which the ranks of a side went: a row each, as tokens, and one rank's records of it."""

    tokens: Ints
    parts: tuple[Part, ...]

    def reach(self) -> int:
        """The number of places that all of them reached."""
        made = (self.tokens != UNKNOWN)[:, ::-1]
        return int(np.where(made.any(axis=1), made.shape[1] - made.argmax(axis=1), 0).min())


def _divergence(finding: Finding, columns: GroupColumns, features: _Features) -> EarlierDivergence | None:
    """The first of the collectives right before a finding at which a side came from other lines than its largest."""
    sides = sorted((side for side in finding.sides if side.ranks), key=lambda side: -len(side.ranks))
    parts = [_parts(columns, side) for side in sides]
    recorded = all(len(asked) == len(side.ranks) for asked, side in zip(parts, sides, strict=True))
    if finding.sequence is None or not 2 <= len(sides) <= _SIDES or not recorded:
        return None
    last = finding.sequence
    first = max(*(int(part.sequences[0]) for asked in parts for part in asked), last - _WINDOW)
    if first >= last:
        return None
    courses = [went for asked in parts if (went := _courses(asked, first, last + 1)) is not None]
    if len(courses) < len(sides):
        return None
    places = [_first_apart(courses[0], went, features) for went in courses[1:]]
    place = min((place for place in places if place is not None), default=None)
    if place is None:
        return None
    apart = [0, *(number for number, other in enumerate(places, 1) if other == place)]
    made = [_side_there(sides[number], courses[number], place, first + place, features) for number in apart]
    known = tuple(side for side in made if side is not None)
    return EarlierDivergence(first + place, known) if len(known) == len(made) else None


def _parts(columns: GroupColumns, side: Side) -> list[Part]:
    ranks = set(side.ranks)
    return [part for part in columns.parts if columns.group.ranks[part.group_rank] in ranks]


def _courses(parts: Sequence[Part], first: int, end: int) -> _Courses | None:
    """From one collective to another; None where they are too many, or a rank has two records of one collective."""
    found: dict[bytes, tuple[Ints, Part]] = {}
    for part in parts:
        inside = slice(*np.searchsorted(part.sequences, [first, end]).tolist())
        if (np.diff(part.sequences[inside]) == 0).any() or len(found) > _COURSES:
            return None
        tokens = part.dense(first, end)
        found.setdefault(tokens.tobytes(), (tokens, part))
    rows, kept = zip(*found.values(), strict=True)
    return _Courses(np.stack(rows), kept)


def _first_apart(main: _Courses, other: _Courses, features: _Features) -> int | None:
    """The place at which two sides came apart for good, before the last one, which is that of the finding.

    Ranks may have lines of their own, as where rank 0 alone logs: so lines do not count by which they had come earlier
    and been together again, and one of them must be ahead of the other, so that the line of one is also run by the
    other. Where no call shows that they were together before, one must be ahead by as many calls all along.
    """
    mine, theirs = features.line[main.tokens], features.line[other.tokens]
    known = (mine != UNKNOWN).all(axis=0) & (theirs != UNKNOWN).all(axis=0)
    together = known & (mine[:, None, :] == theirs[None, :, :]).any(axis=(0, 1))
    apart = known & ~together
    end = min(main.reach(), other.reach(), len(apart) - 1)
    if together[-1]:
        # A disagreement between calls of one line has its cause at that line.
        return None
    before = np.flatnonzero(~apart[:end])
    if len(before) and not together[before[-1]]:
        return None
    if not len(before) and not (_is_shifted(mine, theirs) or _is_shifted(theirs, mine)):
        return None
    begin = int(before[-1]) + 1 if len(before) else 0
    pairs = [column.tobytes() for column in np.concatenate([mine, theirs]).T]
    usual = {pairs[place] for place in np.flatnonzero(apart[:begin]).tolist()}
    place = next((place for place in range(begin, end) if pairs[place] not in usual), None)
    if place is None or not _is_ahead(mine, theirs, place):
        return None
    calls = features.statement[np.concatenate([main.tokens, other.tokens])[:, place]]
    return place if len(np.unique(calls)) == 1 else None


def _is_shifted(behind: Ints, ahead: Ints) -> bool:
    """True if one side comes from the lines of the other, a few calls earlier, as far as both have come."""
    width = behind.shape[1]
    for lead in range(1, min(_LEAD, width - 1) + 1):
        both = behind[:1, lead:], ahead[:, : width - lead]
        made = (both[0] != UNKNOWN) & (both[1] != UNKNOWN)
        if made.any() and bool((both[0] == both[1])[made].all()):
            return True
    return False


def _is_ahead(mine: Ints, theirs: Ints, place: int) -> bool:
    """True if one of two sides runs, at some time, all lines from which the other comes at this place."""
    return bool(np.isin(theirs[:, place], mine).all() or np.isin(mine[:, place], theirs).all())


def _side_there(side: Side, courses: _Courses, place: int, sequence: int, features: _Features) -> Side | None:
    """A side's call at a place, and its lines; None where these are too many, or a record cannot be read."""
    records = [(part.trace.rank, part.at(sequence)) for part in courses.parts]
    made = [(rank, record) for rank, record in records if record is not None]
    if len(np.unique(features.line[courses.tokens[:, place]])) > _LINES or len(made) < len(records):
        return None
    return Side(side.ranks, made[0][1].call, lines((rank, record.source) for rank, record in made))
