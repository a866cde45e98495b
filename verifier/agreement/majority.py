"""Determines the majority's sequence of calls in a group, and the ranks that deviate from it.

Ranks are parted by the sequence of calls that they made; the sequence of most of them is the majority's. Calls that
look alike on the wire are told apart by the lines that made them. Ranks may well reach one call from different lines
(branches, logging), so that a line by itself proves nothing. Lines tell which call is lacking only where all else is in
line with them, and that two calls were exchanged only where the exchange is plain and most ranks stand against it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

import numpy as np
import numpy.typing as npt

from simcoll.verifier.agreement.alignment import LINE, STATEMENT, UNKNOWN, Ints, Path, align, align_all, common_prefix
from simcoll.verifier.agreement.columns import GroupColumns, Part, fingerprint
from simcoll.verifier.agreement.edits import Departures, Edit, EditKind, departures

_CHANGES = 3
"""Changes of line that fall in step only if calls are lacking; fewer may be chance."""


def shifted_by_line(features: Ints, reference: Ints, other: Ints, *, whole: bool) -> Path | None:
    """The path by lines as well as by calls, if it is plain that calls are lacking on one side and nothing else is.

    ``whole`` demands that it holds to the last call of both.
    """
    if (whole and len(reference) == len(other)) or not _lines_differ(features, reference, other):
        return None
    path = align(features, reference, other, by_line=True)
    if whole and (int((path.partner < path.reached).sum()) < len(other) or path.reached < len(reference)):
        return None
    return path if _lacks_calls(path, reference, other) else None


def _lines_differ(features: Ints, reference: Ints, other: Ints) -> bool:
    """True if the lines of the calls differ somewhere, place by place."""
    length = min(len(reference), len(other))
    begin = common_prefix(reference, other)
    here, there = reference[begin:length], other[begin:length]
    return begin < length and not bool((features[here, LINE] == features[there, LINE]).all())


def _lacks_calls(path: Path, reference: Ints, other: Ints) -> bool:
    """True if a path by lines makes it plain that calls are lacking on one side, and nothing else is."""
    end = int((path.partner < path.reached).sum())
    partner = path.partner[:end]
    paired = np.flatnonzero(partner >= 0)
    lacking, more = path.reached - len(paired), end - len(paired)
    if bool(lacking) == bool(more) or not np.array_equal(reference[partner[paired]], other[paired]):
        return False
    short, full = (other[:end], reference[: path.reached]) if lacking else (reference[: path.reached], other[:end])
    left = np.setdiff1d(np.arange(len(full)), partner[paired] if lacking else paired)
    return _plain(short, full, left)


def _plain(short: Ints, full: Ints, lacking: Ints) -> bool:
    """True if the lines show that ``short`` lacks these calls of ``full``, rather than that it runs other lines.

    The lacking lines ran on both sides before, or on one side never; and from there on the lines change in step only if
    the calls are lacking.
    """
    prefix = common_prefix(short, full)
    tokens = full[lacking]
    never = not np.isin(tokens, short).any()
    if UNKNOWN in short or UNKNOWN in full or not (never or np.isin(tokens, short[:prefix]).all()):
        return False
    first = max(prefix - 1, 0) if never else prefix
    changes = np.flatnonzero(short[first:-1] != short[first + 1 :]) + first
    apart = (short[changes] != full[changes]) | (short[changes + 1] != full[changes + 1])
    return int(apart.sum()) >= _CHANGES


def exchanged_lines(features: Ints, usual: Ints, other: Ints, carries: npt.NDArray[np.bool_]) -> Iterator[int]:
    """The places at which ``other`` makes two neighbouring calls in the other order, that look alike.

    ``usual`` is the majority's call at each place (unknown where it has none in common), ``carries`` says by token
    whether the call moves data. Both calls are the same but for their lines, and what stands beside them agrees.
    """
    length = min(len(usual), len(other))
    apart = np.flatnonzero(usual[:length] != other[:length])
    for run in np.split(apart, np.flatnonzero(np.diff(apart) > 1) + 1) if len(apart) else []:
        # A difference up to the end of a rank that is behind may be a shift as well.
        cut = len(run) and run[-1] + 1 == length and len(usual) != len(other)
        if len(run) % 2 == 0 and not cut and _plainly_exchanged(features, usual, other, run, carries):
            yield from run[::2].tolist()


def _plainly_exchanged(features: Ints, usual: Ints, other: Ints, run: Ints, carries: npt.NDArray[np.bool_]) -> bool:
    """True if a run of differing lines is one pair of calls exchanged, once or repeatedly."""
    theirs, mine = usual[run], other[run]
    if UNKNOWN in theirs or UNKNOWN in mine or len({*theirs.tolist(), *mine.tolist()}) != 2:
        return False
    one = len(np.unique(features[theirs, STATEMENT])) == 1 and bool(carries[theirs].all())
    pairs = np.array_equal(theirs[::2], mine[1::2]) and np.array_equal(theirs[1::2], mine[::2])
    same = len(np.unique(theirs[::2])) == 1
    return one and pairs and same


def usual_tokens(sequences: Sequence[tuple[Ints, int]], share: float) -> Ints:
    """At each place the token of more than this share of the ranks: sequences with how many ranks made each."""
    longest = max(len(tokens) for tokens, _ in sequences)
    votes = np.zeros((len(sequences), longest), np.int64)
    stacked = np.full((len(sequences), longest), UNKNOWN, np.int64)
    for row, (tokens, ranks) in enumerate(sequences):
        stacked[row, : len(tokens)] = tokens
        votes[row, : len(tokens)] = ranks
    usual = np.full(longest, UNKNOWN, np.int64)
    total = votes.sum(axis=0)
    for row in range(len(sequences)):
        alike = np.where(stacked == stacked[row], votes, 0).sum(axis=0)
        usual = np.where((alike > share * total) & (votes[row] > 0), stacked[row], usual)
    return usual


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
    start = max(int(part.sequences[0]) for part, _ in columns.classes())
    known: dict[tuple[bytes, bytes], Ints | None] = {}
    same: dict[bytes, CallSequence] = {}
    of: dict[int, CallSequence] = {}
    for part, alike in columns.classes():
        key = part.course()
        if key not in known:
            known[key] = _dense(part, start)
        tokens = known[key]
        if tokens is not None:
            of |= dict.fromkeys(alike, same.setdefault(fingerprint(tokens), CallSequence(tokens, {})))
    for index in sorted(of):
        of[index].members[index] = len(of[index].tokens)
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
    """The courses that are no beginning of another; those that are count for the first that they begin.

    The courses are distinct, the longest first, so that only a longer one begins with another.
    """
    kept: list[CallSequence] = []
    sums: list[Ints] = []
    for length, alike in groupby(courses, lambda course: len(course.tokens)):
        begun: dict[int, list[CallSequence]] = {}
        for one, own in zip(kept, sums, strict=True):
            begun.setdefault(int(own[length]), []).append(one)
        for course in alike:
            own = _prefix_sums(course.tokens)
            like = begun.get(int(own[length]), ())
            longer = next((one for one in like if np.array_equal(one.tokens[:length], course.tokens)), None)
            if longer is not None:
                longer.members.update(course.members)
            else:
                kept.append(course)
                sums.append(own)
    return kept


def _prefix_sums(tokens: Ints) -> Ints:
    """A number for each beginning of a sequence, equal for equal ones and hardly for others."""
    places = np.arange(1, len(tokens) + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    weighed = tokens.astype(np.uint64) * (places ^ (places >> np.uint64(29)) | np.uint64(1))
    return np.concatenate([[0], np.cumsum(weighed, dtype=np.uint64).astype(np.int64)])


@dataclass(slots=True, eq=False)
class Split:
    """An edit, the parts (by index) that did it, and those that did not, each with its own place there.

    ``sequence`` is the position among the majority's calls.
    """

    edit: Edit
    did: dict[int, int] = field(default_factory=dict)
    rest: dict[int, int] = field(default_factory=dict)
    sequence: int = 0

    @property
    def overruled(self) -> bool:
        """True if most ranks did it, so that it is the reference that departs."""
        return len(self.did) > len(self.rest)


@dataclass(frozen=True, slots=True, eq=False)
class Consensus:
    """The departures from the majority, and the group's calls with their positions aligned."""

    start: int
    splits: tuple[Split, ...]
    realigned: GroupColumns


def consensus(columns: GroupColumns) -> Consensus | None:
    """Align all ranks' calls; None where all comparable calls are aligned already."""
    lineup = line_up(columns)
    if len(lineup.courses) < 2:
        return None
    features = columns.words.features()
    first = lineup.courses[0].tokens
    paths = _paths(features, first, lineup)
    reference = _usual(features, first, lineup, paths)
    if reference is not first:
        paths = _paths(features, reference, lineup)
    found = _departures(features, reference, lineup, paths, swaps=True)
    splits = votes(lineup, found)
    return Consensus(lineup.start, tuple(splits), _realigned(columns, lineup, found, splits))


def _usual(features: Ints, reference: Ints, lineup: Lineup, paths: Sequence[Path]) -> Ints:
    """The call of most ranks at each place; possibly no rank made all of them."""
    found = _departures(features, reference, lineup, paths, swaps=False)
    overruled = [split.edit for split in votes(lineup, found) if split.overruled]
    for edit in sorted(overruled, key=lambda edit: -edit.low):
        reference = np.concatenate([reference[: edit.low], np.array(edit.tokens, np.int64), reference[edit.high :]])
    return reference


def _paths(features: Ints, reference: Ints, lineup: Lineup) -> list[Path]:
    """The path of each course, by lines where :func:`shifted_by_line` has one."""
    courses = [course.tokens for course in lineup.courses]
    differ = [index for index, tokens in enumerate(courses) if _lines_differ(features, reference, tokens)]
    by_line = zip(
        differ, align_all(features, reference, [courses[index] for index in differ], by_line=True), strict=True
    )
    paths = {index: path for index, path in by_line if _lacks_calls(path, reference, courses[index])}
    rest = [index for index in range(len(courses)) if index not in paths]
    paths.update(zip(rest, align_all(features, reference, [courses[index] for index in rest]), strict=True))
    return [paths[index] for index in range(len(courses))]


def _departures(
    features: Ints, reference: Ints, lineup: Lineup, paths: Sequence[Path], *, swaps: bool
) -> list[Departures]:
    return [
        departures(features, reference, course.tokens, path, swaps=swaps)
        for course, path in zip(lineup.courses, paths, strict=True)
    ]


def votes(lineup: Lineup, found: Sequence[Departures]) -> list[Split]:
    """Every edit with the ranks that did it and those that came to its place and did not."""
    splits: dict[Edit, Split] = {}
    for course, departed in zip(lineup.courses, found, strict=True):
        for edit in departed.edits:
            split = splits.setdefault(edit, Split(edit))
            split.did.update((index, edit.mine) for index in course.came_past(edit.mine))
    lows = np.array([edit.low for edit in splits], np.int64)
    for course, departed in zip(lineup.courses, found, strict=True):
        own = set(departed.edits)
        for split, place in zip(splits.values(), _arrivals(departed, lows), strict=True):
            if place < len(departed.partner) and split.edit not in own:
                split.rest.update((index, place) for index in course.came_past(place))
    return sorted((one for one in splits.values() if one.did and one.rest), key=lambda one: one.edit.low)


def _arrivals(departed: Departures, lows: Ints) -> list[int]:
    """The places of a course at these places of the reference, or past them; its end where it ends before."""
    places: list[int] = np.searchsorted(np.maximum.accumulate(departed.partner), lows).tolist()
    return places


def _realigned(
    columns: GroupColumns, lineup: Lineup, found: Sequence[Departures], splits: Sequence[Split]
) -> GroupColumns:
    numbers = _numbers(lineup, splits, max(len(course.tokens) for course in lineup.courses))
    realigned = GroupColumns(columns.group, columns.words)
    for course, departed in zip(lineup.courses, found, strict=True):
        places = np.where(departed.partner < 0, -1, numbers[departed.partner])
        for split in splits:
            if split.edit.kind is EditKind.EXTRA and split.overruled and split.edit in departed.edits:
                own = next(edit.mine for edit in departed.edits if edit == split.edit)
                size = len(split.edit.tokens)
                places[own : own + size] = np.arange(split.sequence, split.sequence + size)
        for index in course.members:
            realigned.add(_moved(columns.parts[index], lineup.start, places))
    return realigned


def _numbers(lineup: Lineup, splits: Sequence[Split], longest: int) -> Ints:
    """The position of each call of the reference among the majority's calls, -1 for those that the majority lacks.

    Calls beyond the reference's end count on.
    """
    made = np.ones(2 * longest + 1, np.int64)
    more = np.zeros_like(made)
    for split in splits:
        if split.overruled and split.edit.kind is EditKind.SKIPPED:
            made[split.edit.low : split.edit.high] = 0
        if split.overruled and split.edit.kind is EditKind.EXTRA:
            more[split.edit.low] = len(split.edit.tokens)
    numbers: Ints = lineup.start + np.cumsum(made) - made + np.cumsum(more)
    for split in splits:
        added = more[split.edit.low] if split.edit.kind is EditKind.EXTRA else 0
        split.sequence = int(numbers[split.edit.low] - added)
    return np.where(made > 0, numbers, -1)


def _moved(part: Part, start: int, places: Ints) -> Part:
    """A part with the positions of its calls replaced, without those that have none."""
    own = part.sequences - start
    inside = (own >= 0) & (own < len(places))
    moved = np.where(inside, places[np.where(inside, own, 0)], -1) if len(places) else np.full(len(own), -1)
    kept = np.flatnonzero(moved >= 0)
    kept = kept[np.argsort(moved[kept], kind="stable")]
    return replace(
        part,
        rows=part.rows[kept],
        sequences=moved[kept],
        kinds=part.kinds[kept],
    )
