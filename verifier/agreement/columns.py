"""The same-call check over whole traces, column by column.

Each record gets the word of its call (in the module ``alignment``; one computation per distinct call and
group rank). Where all ranks of a group have recorded a position, it holds if the words add up to zero modulo 2^64;
where some have not, if those that have state the same. Only the remaining positions are compared record by record.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from simcoll.core.record import UNKNOWN_SOURCE, Group, Record, Source
from simcoll.core.trace import Slots, Trace, course_key, lives, record_at
from simcoll.spec.call import Call
from simcoll.spec.collectives import COLLECTIVES
from simcoll.spec.table import Kind
from simcoll.verifier.agreement.alignment import UNKNOWN, Word, Words

_MASK = (1 << 64) - 1
_BEFORE = 3
_FEW, _MANY = 16, 1024
"""Positions that are looked at together, at first and later on."""

_NO_NUMBERS: npt.NDArray[np.int64] = np.zeros(0, np.int64)
_NO_MARKS: npt.NDArray[np.bool_] = np.zeros(0, np.bool_)

_SPARSE = 4
"""So many times as many numbers as records may there be for a table of them all."""


@dataclass(frozen=True, slots=True, eq=False)
class Stated:
    """The distinct calls of a group that one rank made, as arrays; ``said`` has the numbers of their statements.

    It is one object for ranks that state the same from the same lines, whose words yet differ.
    """

    digests: npt.NDArray[np.uint64]
    tokens: npt.NDArray[np.int32]
    calls: npt.NDArray[np.int32]
    even: npt.NDArray[np.bool_]
    said: tuple[int, ...]
    sources: tuple[Source, ...]


def fingerprint(column: npt.NDArray[Any]) -> bytes:
    """16 bytes that stand for a column's values."""
    return blake2b(np.ascontiguousarray(column).data, digest_size=16).digest()


# Not frozen, as what is made for each of thousands of ranks: that takes several times as long.
@dataclass(slots=True, eq=False)
class Part:
    """One trace's records of one group, by position: which rows, and of which kind each is.

    ``sequences`` is where each stands among the group's collectives, ascending. ``kinds`` index what the distinct
    calls of this rank say: their words, digests and tokens.
    """

    trace: Trace
    group_rank: int
    rows: npt.NDArray[np.int32]
    sequences: npt.NDArray[np.uint32]
    kinds: npt.NDArray[np.int32]
    stated: Stated
    said: tuple[Word, ...]

    def words(self, size: int) -> npt.NDArray[np.uint64]:
        """The word of each record, in a group of so many ranks."""
        return np.array([word.whole(self.group_rank, size) for word in self.said], np.uint64)[self.kinds]

    def of(self, trace: Trace, group_rank: int) -> Part:
        """The same records, as another trace has them."""
        return Part(trace, group_rank, self.rows, self.sequences, self.kinds, self.stated, self.said)

    @property
    def alike(self) -> tuple[int, int, int]:
        """A key that is equal for parts known to state the same, from the same lines, at the same positions; parts may
        do so without.
        """
        return id(self.sequences), id(self.kinds), id(self.stated)

    @property
    def slots_alike(self) -> tuple[int, ...]:
        """A key that is equal for parts whose slots are known to be equal but for the times, too."""
        return id(self.rows), *self.alike

    @property
    def digests(self) -> npt.NDArray[np.uint64]:
        """The digest of each record's statement, 0 where flows speak as well."""
        return self.stated.digests[self.kinds]

    @property
    def tokens(self) -> npt.NDArray[np.int32]:
        """The token of each record."""
        return self.stated.tokens[self.kinds]

    def token(self, place: int) -> int:
        """The token of the record at one of these places."""
        return int(self.stated.tokens[self.kinds[place]])

    def course(self) -> tuple[bytes, bytes]:
        """A key that is equal for parts that made the same calls, from the same lines, at the same positions."""
        return fingerprint(self.sequences), fingerprint(self.tokens)

    def record(self, place: int) -> Record | None:
        """The record at one of these places, or None where it cannot be read."""
        return record_at(self.trace, int(self.rows[place])) if 0 <= place < len(self.rows) else None

    def place(self, sequence: int) -> int | None:
        """The index of a position's record, or None where this rank has none."""
        place = int(np.searchsorted(self.sequences, sequence))
        return place if place < len(self.rows) and self.sequences[place] == sequence else None

    def dense(self, first: int, end: int) -> npt.NDArray[np.int64]:
        """The tokens of positions ``first`` to ``end`` (without it), :data:`UNKNOWN` where this rank has no record."""
        inside = slice(*np.searchsorted(self.sequences, [first, end]).tolist())
        tokens = np.full(max(end - first, 0), UNKNOWN, np.int64)
        tokens[self.sequences[inside].astype(np.int64) - first] = self.stated.tokens[self.kinds[inside]]
        return tokens

    def at(self, sequence: int) -> Record | None:
        """The record at a position, or None where this rank has none that can be read."""
        place = self.place(sequence)
        return None if place is None else self.record(place)


@dataclass(frozen=True, slots=True, eq=False)
class Suspect:
    """A position at which the words do not prove agreement; positions with one ``key`` have the same calls and lines.

    ``complete`` says that all ranks of the group have come to it.
    """

    sequence: int
    key: bytes
    complete: bool


class GroupColumns:
    """All ranks' collectives of one group (one life of it, where it was destroyed and made again)."""

    def __init__(self, group: Group, words: Words) -> None:
        self.group = group
        self.words = words
        self.parts: list[Part] = []
        self._classes: dict[bool, list[tuple[Part, list[int]]]] = {}
        self._sequences = self._counts = _NO_NUMBERS
        self._good = self._complete = _NO_MARKS
        self._left: npt.NDArray[np.intp] = _NO_NUMBERS
        self._agreed = 0

    def by_stack(self, depth: int | None = None) -> GroupColumns:
        """These columns with the calls of a line told apart by their callers, or by the innermost ``depth`` of these.

        Ranks may come to one line by ways of their own, as where rank 0 alone logs. So only the callers of lines count
        of which each rank has all stacks that most ranks have, or some of these and no others.
        """
        each = {id(part.stated): part.stated for part, _ in self.classes()}
        stacks = {key: _stacks_of_lines(stated, self.words, depth) for key, stated in each.items()}
        told = _told_apart([(stacks[id(part.stated)], len(alike)) for part, alike in self.classes()])
        if not told:
            return self
        apart = {key: _by_stack(stated, told, self.words, depth) for key, stated in each.items()}
        found = GroupColumns(self.group, self.words)
        for part in self.parts:
            found.add(replace(part, stated=apart[id(part.stated)]))
        return found

    def add(self, part: Part) -> None:
        """Take in one trace's records of this group."""
        self.parts.append(part)
        self._classes = {}

    def check(self, known: dict[object, GroupColumns] | None = None) -> int:
        """Compare the statements; returns the number of positions at which all ranks of the group are proved to agree.

        Equal digests of all ranks of a group are words that add up to zero, if each is even. Ranks with equal columns
        are looked at together, and words are added up only where digests leave it open. ``known`` has groups that were
        checked, and takes in this one: those whose ranks are alike are compared once.
        """
        courses_key = self._likeness() if known is not None else None
        if known and (other := known.get(courses_key) or known.get(self._words_likeness())) is not None:
            self._sequences, self._good, self._left = other._sequences, other._good, other._left
            self._complete, self._counts, self._agreed = other._complete, other._counts, other._agreed
            return self._agreed
        courses: dict[tuple[bytes, bytes], tuple[Part, int]] = {}
        for part, alike in self.classes():
            key = fingerprint(part.sequences), fingerprint(part.digests)
            courses[key] = part, courses.get(key, (part, 0))[1] + len(alike)
        # Columns with many distinct courses are joined bit by bit, columns with few at once.
        self._sequences = np.unique(np.concatenate([part.sequences for part, _ in courses.values()])).astype(np.int64)
        counts = np.zeros(len(self._sequences), np.int64)
        least, most = np.full(len(counts), _MASK, np.uint64), np.zeros(len(counts), np.uint64)
        for part, often in courses.values():
            place, digests = np.searchsorted(self._sequences, part.sequences), part.digests
            np.add.at(counts, place, often)
            np.minimum.at(least, place, digests)
            np.maximum.at(most, place, digests)
        self._counts, self._complete = counts, counts == len(self.group.ranks)
        alike = (least == most) & (least != 0)
        proved = alike & self._once_each() & (~self._uneven() | self.group.partial)
        self._good = np.where(self._complete, proved, alike | (counts == 1))
        left = np.flatnonzero(self._complete & ~self._good)
        if not self.group.partial:
            self._add_up(left)
        # Words that were added up are those of these very places in a group.
        if known is not None:
            known[self._words_likeness() if len(left) else courses_key] = self
        self._left, self._agreed = np.flatnonzero(~self._good), int((self._complete & self._good).sum())
        return self._agreed

    def _likeness(self) -> object:
        """A key that is equal for groups of one size whose ranks made the same calls and state the same in them."""
        once = len({part.group_rank for part in self.parts}) == len(self.parts)
        ranks = tuple((part.alike, len(alike)) for part, alike in self.classes())
        return len(self.group.ranks), self.group.partial, id(self.words), once, ranks

    def _words_likeness(self) -> object:
        """A key that is equal for groups of one size whose members' records have the same words as well."""
        parts = tuple([(part.group_rank, id(part.said), *part.alike) for part in self.parts])
        return len(self.group.ranks), self.group.partial, id(self.words), parts

    def classes(self, *, of_slots: bool = False) -> list[tuple[Part, list[int]]]:
        """One part of each class of parts that are known to be alike, and the places of all of the class; ``of_slots``:
        alike in the slots of their records too.
        """
        if of_slots not in self._classes:
            found: dict[tuple[int, ...], tuple[Part, list[int]]] = {}
            for place, part in enumerate(self.parts):
                found.setdefault(part.slots_alike if of_slots else part.alike, (part, []))[1].append(place)
            self._classes[of_slots] = [*found.values()]
        return self._classes[of_slots]

    def agreed_among(self, present: int) -> int:
        """The number of positions at which so many members, all that have records, state the same (after `check`)."""
        return int((self._good & (self._complete | ((self._counts == present) & (present > 1)))).sum())

    def _once_each(self) -> bool:
        """True if no rank has two records at one position, nor two parts: then counting ranks is counting records."""
        ranks = {part.group_rank for part in self.parts}
        return len(ranks) == len(self.parts) and all((np.diff(one.sequences) > 0).all() for one, _ in self.classes())

    def _uneven(self) -> npt.NDArray[np.bool_]:
        """A mask of the positions at which some rank's word also holds flows."""
        uneven = np.zeros(len(self._sequences), np.bool_)
        for part, _ in self.classes():
            if not part.stated.even.all():
                odd = part.sequences[~part.stated.even[part.kinds]]
                uneven[np.searchsorted(self._sequences, odd)] = True
        return uneven

    def _add_up(self, places: npt.NDArray[np.intp]) -> None:
        """Mark those of these positions at which the words add up to zero."""
        if not len(places):
            return
        totals, sequences = np.zeros(len(places), np.uint64), self._sequences[places]
        for part in self.parts:
            here = np.searchsorted(sequences, part.sequences)
            inside = sequences[np.minimum(here, len(sequences) - 1)] == part.sequences
            np.add.at(totals, here[inside], part.words(len(self.group.ranks))[inside])
        self._good[places] = totals == 0

    def suspects(self) -> Iterator[Suspect]:
        """The positions that :meth:`check` did not prove, in order."""
        left, size = self._left, _FEW
        while len(left):
            places, left, size = left[:size], left[size:], min(2 * size, _MANY)
            for place, row in zip(places.tolist(), self._calls_at(self._sequences[places]), strict=True):
                yield Suspect(int(self._sequences[place]), fingerprint(row), bool(self._complete[place]))

    def _calls_at(self, sequences: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
        """The number of the call that each part (a column) made at each of these positions (a row); -1 for none."""
        found = np.full((len(sequences), len(self.parts)), -1, np.int32)
        for column, part in enumerate(self.parts):
            if len(part.sequences):
                place = np.minimum(np.searchsorted(part.sequences, sequences), len(part.sequences) - 1)
                there = part.sequences[place] == sequences
                found[there, column] = part.stated.calls[part.kinds[place[there]]]
        return found

    def records(self, sequence: int) -> dict[int, Record]:
        """The records at one position, by group rank."""
        found = {}
        for part in self.parts:
            if (record := part.at(sequence)) is not None:
                found[part.group_rank] = record
        return found

    def before(self, sequence: int, ranks: Container[int]) -> tuple[Record, ...]:
        """The last positions before this one that were proved, as one of these group ranks recorded them."""
        earlier = self._sequences[self._good & self._complete & (self._sequences < sequence)][-_BEFORE:]
        part = next((part for part in self.parts if part.group_rank in ranks), None)
        if part is None:
            return ()
        places = np.flatnonzero(np.isin(part.sequences, earlier))
        return tuple(record for place in places if (record := part.record(int(place))) is not None)

    def last_ns(self) -> int:
        """The time at which the last of all these calls was made or ended (wall clock, nanoseconds)."""
        times = [part.trace.slots[name][part.rows] for part in self.parts for name in ("scheduled_ns", "finished_ns")]
        return max((int(column.max()) for column in times if len(column)), default=0)


_Line: TypeAlias = tuple[str, int]


def _stacks_of_lines(stated: Stated, words: Words, depth: int | None) -> dict[_Line, frozenset[int]]:
    """The stacks with which a rank came to each of its lines."""
    found: dict[_Line, set[int]] = {}
    for source in stated.sources:
        found.setdefault((source.file, source.line), set()).add(words.stack(source, depth))
    return {line: frozenset(stacks) for line, stacks in found.items()}


def _by_stack(stated: Stated, told: set[_Line], words: Words, depth: int | None) -> Stated:
    """What a rank stated, with tokens that tell the calls of these lines apart by their callers."""
    tokens = [
        words.token(said, source, words.stack(source, depth))
        if (source.file, source.line) in told
        else words.token(said, source)
        for said, source in zip(stated.said, stated.sources, strict=True)
    ]
    return replace(stated, tokens=np.array(tokens, np.int32))


def _told_apart(ranks: Sequence[tuple[dict[_Line, frozenset[int]], int]]) -> set[_Line]:
    """The lines whose stacks can be compared between ranks, and of which there is more than one.

    ``ranks`` has the stacks of the lines of each kind of rank, and how many ranks are of that kind.
    """
    often: dict[_Line, Counter[frozenset[int]]] = {}
    for mine, many in ranks:
        for line, stacks in mine.items():
            often.setdefault(line, Counter())[stacks] += many
    found = set()
    for line, sets in often.items():
        usual = sets.most_common(1)[0][0]
        if len(frozenset().union(*sets)) > 1 and all(one <= usual or one >= usual for one in sets):
            found.add(line)
    return found


def columns_of(traces: Sequence[Trace]) -> list[GroupColumns]:
    """The collectives of every group, from all traces; a group is known by its name, its members and its life.

    A black box has an entry for each life of a group; a dump has one for all. What ranks with equal columns have in
    common is worked out once, and so is what groups have.
    """
    dropped = (trace.groups[index] for trace in traces for index in trace.dropped if index < len(trace.groups))
    wrapped = {(group.name, group.ranks) for group in dropped}
    unknown = frozenset[str]().union(*(trace.unknown for trace in traces))
    words, found = Words(unknown), dict[object, GroupColumns]()
    courses, shared, statements = dict[object, _Courses](), _SharedCourses(), _Statements(words)
    alike: dict[object, list[tuple[GroupColumns, Part]]] = {}
    for trace in traces:
        rank, key = trace.rank, course_key(trace)
        # Ranks that are alike and in the same groups, and state nothing of their own, differ in their places.
        if (known := alike.get((key, id(trace.groups)))) is not None:
            places = [theirs.group.place(rank) for theirs, _ in known]
            if None not in places:
                for (theirs, part), place in zip(known, places, strict=True):
                    theirs.add(part.of(trace, place or 0))
                continue
        if (own := courses.get(key)) is None:
            own = courses[key] = _Courses(trace, shared)
        made, one_for_all = list[tuple[GroupColumns, Part]](), True
        for index, (group, entry) in enumerate(zip(trace.groups, lives(trace), strict=True)):
            group_rank = group.place(rank)
            if group_rank is None:
                one_for_all = False
                continue
            for course, rows in own.of(index, from_end=bool(wrapped) and (group.name, group.ranks) in wrapped):
                life = *entry, course.life
                if (columns := found.get(life)) is None:
                    columns = found[life] = GroupColumns(group, words)
                said, stated = statements.of(course, group_rank, len(group.ranks))
                one_for_all = one_for_all and statements.is_of_all(course, len(group.ranks))
                part = Part(trace, group_rank, rows, course.sequences, course.kinds, stated, said)
                columns.add(part)
                made.append((columns, part))
        if one_for_all:
            alike[key, id(trace.groups)] = made
    return list(found.values())


_Rows: TypeAlias = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class _Course:
    """The collectives that a rank made in one life of a group: ``places`` among its records of the group, and their
    positions; ``used`` are its distinct calls and their lines. It is one object for all ranks and groups that have it.
    """

    life: int
    places: npt.NDArray[np.intp]
    sequences: npt.NDArray[np.uint32]
    kinds: npt.NDArray[np.int32]
    used: tuple[tuple[Call, Source], ...]


_CALL = np.dtype([(name, "<u4") for name in ("sequence", "signature", "source")])


class _Courses:
    """The courses of a trace, and so of all that are like it, by the index of the group."""

    def __init__(self, trace: Trace, shared: _SharedCourses) -> None:
        slots: Slots = trace.slots
        self._trace, self._shared = trace, shared
        rows = np.flatnonzero((slots["p2p_sequence"] == 0) & (slots["signature"] < len(trace.signatures)))
        groups = slots["group"][rows]
        if (groups[1:] != groups[:-1]).any():
            order = np.argsort(groups, kind="stable")
            rows, groups = rows[order], groups[order]
        calls = np.empty(len(rows), _CALL)
        for name in _CALL.names or ():
            calls[name] = slots[name][rows]
        bounds = [0, *(np.flatnonzero(groups[1:] != groups[:-1]) + 1).tolist(), len(rows)]
        self._of = {
            int(groups[begin]): (rows[begin:end].astype(np.int32), calls[begin:end])
            for begin, end in pairwise(bounds)
            if begin < end
        }
        self._found: dict[tuple[int, bool], list[tuple[_Course, _Rows]]] = {}

    def of(self, index: int, *, from_end: bool) -> list[tuple[_Course, _Rows]]:
        """The collectives of one group and their rows, by its lives; lives are counted as :func:`_lives` does."""
        key = index, from_end
        if key not in self._found:
            self._found[key] = []
            if index in self._of:
                rows, calls = self._of[index]
                # Of one group no other rank's calls are these, or it would be alike.
                whole = len(self._of) == 1
                found = self._shared.of(
                    self._trace, calls, course_key(self._trace) if whole else None, from_end=from_end
                )
                self._found[key] = [(one, rows[one.places]) for one in found]
        return self._found[key]


class _SharedCourses:
    """The courses of groups by what ranks recorded of them."""

    def __init__(self) -> None:
        self._found: dict[object, list[_Course]] = {}
        self._known: dict[int, npt.NDArray[np.bool_]] = {}

    def of(self, trace: Trace, calls: npt.NDArray[Any], known: object, *, from_end: bool) -> list[_Course]:
        """The course of each life of a group in which a rank made these calls, in the order of its records; ``known``
        is a key of the calls, None where they are to be their own.
        """
        key = known or fingerprint(calls), from_end, id(trace.signatures), id(trace.sources)
        if key not in self._found:
            parts = _by_life(calls["sequence"], from_end=from_end)
            found = (self._course(trace, calls, life, places) for life, places in parts)
            self._found[key] = [one for one in found if one is not None]
        return self._found[key]

    def _course(self, trace: Trace, calls: npt.NDArray[Any], life: int, places: npt.NDArray[np.intp]) -> _Course | None:
        if (known := self._known.get(id(trace.signatures))) is None:
            known = self._known[id(trace.signatures)] = _known(trace)
        if not known.all():
            places = places[known[calls["signature"][places]]]
        if not len(places):
            return None
        sequences = calls["sequence"][places]
        if (sequences[1:] < sequences[:-1]).any():
            # Threads may write down their calls a little out of order.
            order = np.argsort(sequences, kind="stable")
            places, sequences = places[order], sequences[order]
        pairs, kinds = _distinct(calls["signature"][places], calls["source"][places])
        used = [
            (trace.signatures[call], trace.sources[line] if line < len(trace.sources) else UNKNOWN_SOURCE)
            for call, line in pairs
        ]
        return _Course(life, places, sequences, kinds, tuple(used))


class _Statements:
    """What ranks state in their calls: one object for ranks of one course that state the same."""

    def __init__(self, words: Words) -> None:
        self._words = words
        self._told: dict[object, Stated] = {}
        self._of_all: dict[object, tuple[tuple[Word, ...], Stated]] = {}
        self._of_one: dict[object, tuple[tuple[Word, ...], Stated]] = {}

    def of(self, course: _Course, group_rank: int, size: int) -> tuple[tuple[Word, ...], Stated]:
        """The word of each distinct call of a course as made by one rank of a group, and what they state."""
        one = id(course), group_rank, size
        found = self._of_all.get((id(course), size)) or self._of_one.get(one)
        if found is None:
            said = tuple([self._words.of(call, group_rank, size) for call, _ in course.used])
            found = said, self._stated(course, said)
            if all(self._words.alike(call) for call, _ in course.used):
                self._of_all[id(course), size] = found
            else:
                self._of_one[one] = found
        return found

    def is_of_all(self, course: _Course, size: int) -> bool:
        """True if every rank of a group of so many states the same in a course that :meth:`of` was asked for."""
        return (id(course), size) in self._of_all

    def _stated(self, course: _Course, said: Sequence[Word]) -> Stated:
        words = self._words
        key = (id(course), *[(word.digest, word.stated, word.even) for word in said])
        found = self._told.get(key)
        if found is None:
            sources = tuple(source for _, source in course.used)
            found = self._told[key] = Stated(
                np.array([word.digest for word in said], np.uint64),
                np.array([words.token(one.stated, line) for one, line in zip(said, sources, strict=True)], np.int32),
                np.array([words.call(call, source) for call, source in course.used], np.int32),
                np.array([word.even for word in said], np.bool_),
                tuple(word.stated for word in said),
                sources,
            )
        return found


def _known(trace: Trace) -> npt.NDArray[np.bool_]:
    """A mask of a trace's calls that are collectives of the table."""
    specs = [COLLECTIVES.get(call.op) for call in trace.signatures]
    return np.array([spec is not None and spec.kind is not Kind.POINT_TO_POINT for spec in specs], np.bool_)


def _by_life(sequences: npt.NDArray[np.uint32], *, from_end: bool) -> list[tuple[int, npt.NDArray[np.intp]]]:
    """The places of the records of each life of a group, by its number."""
    if len(sequences) and not (sequences[1:] == 1).any():
        return [(0 if from_end else 1, np.arange(len(sequences)))]
    lives = _lives(sequences, from_end=from_end)
    return [(int(life), np.flatnonzero(lives == life)) for life in np.unique(lives)]


def _lives(sequences: npt.NDArray[np.uint32], *, from_end: bool) -> npt.NDArray[np.int64]:
    """The life of the group to which each record belongs: a group made anew counts from 1 again.

    Lives count from the first, or backwards from the last where some rank's first records are gone.
    """
    lives: npt.NDArray[np.int64] = np.maximum(np.cumsum(sequences == 1), 0 if from_end else 1).astype(np.int64)
    return lives - lives[-1] if from_end and len(lives) else lives


def _distinct(
    signatures: npt.NDArray[np.uint32], sources: npt.NDArray[np.uint32]
) -> tuple[list[tuple[int, int]], npt.NDArray[np.int32]]:
    """The distinct pairs, ascending, and the index among them of each pair."""
    width = int(sources.max(initial=0)) + 1
    calls = signatures.astype(np.int64) * width + sources
    size = int(calls.max(initial=0)) + 1
    if size > max(_SPARSE * len(calls), 1):
        used, kinds = np.unique(calls, return_inverse=True)
    else:
        # Small numbers are told apart by a table of them all, without sorting.
        used = np.flatnonzero(np.bincount(calls, minlength=1))
        table = np.zeros(size, np.int32)
        table[used] = np.arange(len(used))
        kinds = table[calls]
    return [divmod(int(call), width) for call in used], kinds.astype(np.int32)
