"""Ranks that make the same operations on the same collectives go on together, each after compute of its own.

Whatever releases one of them releases all, so that a replay has one place in the program for them, and one time for
each distinct course of compute. Ranks with messages stand alone: of the two ends of a message one gives and one takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from simcoll.pricing.job import Floats, Integers, RecordedJob
from simcoll.pricing.rank_program import Program
from simcoll.verifier.agreement.columns import fingerprint

FEW = 64
"""So many kinds of programs at most for ranks of unlike compute to go on together."""

_PART = 61
"""One of so many gaps is looked at first."""


@dataclass(frozen=True, slots=True, eq=False)
class Lockstep:
    """Some columns of a job, ascending; ``course`` says which of the distinct ``programs`` each has."""

    columns: tuple[int, ...]
    course: Integers
    programs: tuple[Program, ...]

    @property
    def kind(self) -> npt.NDArray[np.uint8]:
        """The kinds of operations."""
        return self.programs[0].kind

    @property
    def instance(self) -> npt.NDArray[np.int32]:
        """The collective of each operation."""
        return self.programs[0].instance

    def gaps(self) -> Floats:
        """Seconds of compute: a row an operation, a column a course."""
        return np.stack([program.gap for program in self.programs], axis=1)


def in_lockstep(job: RecordedJob) -> list[Lockstep]:
    """All columns of a job, those that go on together as one, in the order of their last ranks.

    Where few kinds of programs are left, ranks with the same operations go on together; otherwise, to be replayed by
    waves with one time for each, those that compute alike as well.
    """
    alone = {int(column) for stream in job.streams if stream.message for column in stream.members}
    # Many ranks share their arrays.
    known = {id(one): one for program in job.programs for one in (program.kind, program.instance)}
    told = {key: fingerprint(one) for key, one in known.items()}

    def operations(column: int) -> object:
        program = job.programs[column]
        return column if column in alone else (told[id(program.kind)], told[id(program.instance)])

    found = _alike(range(len(job.programs)), operations)
    if len(found) > FEW:
        found = [part for columns in found for part in _alike_in_compute(job, columns)]
    return [_lockstep(job, columns) for columns in sorted(found, key=lambda columns: columns[-1])]


def each_alone(job: RecordedJob) -> list[Lockstep]:
    """All columns of a job, each by itself."""
    return [_lockstep(job, [column]) for column in range(len(job.programs))]


def _lockstep(job: RecordedJob, columns: list[int]) -> Lockstep:
    courses = _alike_in_compute(job, columns)
    of_column = {column: number for number, course in enumerate(courses) for column in course}
    course = np.array([of_column[column] for column in columns], np.int64)
    return Lockstep(tuple(columns), course, tuple(job.programs[course[0]] for course in courses))


def _alike(columns: Iterable[int], key: Callable[[int], object]) -> list[list[int]]:
    found: dict[object, list[int]] = {}
    for column in columns:
        found.setdefault(key(column), []).append(column)
    return list(found.values())


def _alike_in_compute(job: RecordedJob, columns: list[int]) -> list[list[int]]:
    """These columns, ascending, by their compute; all of it is looked at where a part of it is alike."""
    partly = _alike(columns, lambda column: job.programs[column].gap[::_PART].tobytes())
    found = [
        same
        for some in partly
        for same in (_alike(some, lambda column: job.programs[column].gap.tobytes()) if len(some) > 1 else [some])
    ]
    return sorted(found, key=lambda same: same[0])
