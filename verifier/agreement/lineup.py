"""The ranks of a group parted by the sequence of calls that they made, and the sequence that most of them made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simcoll.verifier.agreement.alignment import Ints
from simcoll.verifier.agreement.columns import GroupColumns, Part, fingerprint

_COURSES, _ALIGNED = 1024, 64
"""Different sequences that are told apart, and those of them that are aligned; ranks with others yet are left out."""

_GAPS = 4096
"""Positions without a record beyond which a rank's sequence is damaged."""


@dataclass(slots=True, eq=False)
class CallSequence:
    """A sequence of calls, as tokens from :attr:`Lineup.start` on, and the parts (by index) that made it.

    ``members`` maps each to how far it came: a rank that is only behind the others belongs to them.
    """

    tokens: Ints
    members: dict[int, int]

    def came_past(self, place: int) -> list[int]:
        """The parts that made the call at this place."""
        return [index for index, length in self.members.items() if length > place]


@dataclass(frozen=True, slots=True, eq=False)
class Lineup:
    """All courses of a group, the one of most ranks first. ``start`` is the position of their first call.

    ``complete`` says that no rank was left out.
    """

    start: int
    courses: tuple[CallSequence, ...]
    complete: bool


def line_up(columns: GroupColumns) -> Lineup:
    """Part the ranks by their calls, from the first position on that every rank's records still hold."""
    start = max(int(part.sequences[0]) for part in columns.parts)
    known: dict[tuple[bytes, bytes], Ints | None] = {}
    same: dict[bytes, CallSequence] = {}
    for index, part in enumerate(columns.parts):
        key = part.course()
        if key not in known:
            known[key] = _dense(part, start)
        tokens = known[key]
        if tokens is not None:
            course = same.setdefault(fingerprint(tokens), CallSequence(tokens, {}))
            course.members[index] = len(tokens)
    common = sorted(same.values(), key=lambda course: -len(course.members))[:_COURSES]
    courses = _longest(sorted(common, key=lambda course: -len(course.tokens)))
    courses.sort(key=lambda course: (-len(course.members), -len(course.tokens), min(course.members)))
    courses = courses[:_ALIGNED]
    return Lineup(start, tuple(courses), sum(len(course.members) for course in courses) == len(columns.parts))


def _dense(part: Part, start: int) -> Ints | None:
    """A rank's tokens, one a position, unknown where no record is; None where its positions make no sense."""
    made = len(part.sequences) - int(np.searchsorted(part.sequences, start))
    length = int(part.sequences[-1]) + 1 - start if made else 0
    return None if length > made + _GAPS else part.dense(start, start + length)


def _longest(courses: Sequence[CallSequence]) -> list[CallSequence]:
    """The courses that are no beginning of another; those that are count for the first that they begin."""
    kept: list[CallSequence] = []
    for course in courses:
        length = len(course.tokens)
        longer = next((one for one in kept if np.array_equal(one.tokens[:length], course.tokens)), None)
        if longer is not None:
            longer.members.update(course.members)
        else:
            kept.append(course)
    return kept
