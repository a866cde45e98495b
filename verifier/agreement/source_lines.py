"""Calls that look alike on the wire, told apart by the lines that made them.

Ranks may well reach one call from different lines (branches, logging), so that a line by itself proves nothing. Lines
tell which call is lacking only where all else is in line with them, and that two calls were exchanged only where the
exchange is plain and most ranks stand against it.

Findings that only the source lines give away, in a group whose collectives all agree position by position.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from simcoll.verifier.agreement.alignment import UNKNOWN, Ints, Path, align, common_prefix
from simcoll.verifier.agreement.columns import GroupColumns
from simcoll.verifier.agreement.edits import Departures, Edit, Kind, departures
from simcoll.verifier.agreement.majority import Lineup, Split, line_up, votes
from simcoll.verifier.agreement.skipped_calls import Camp, Departed, departed, swapped
from simcoll.verifier.agreement.words import LINE, STATEMENT

_CLEAR = 2 / 3
"""The share of ranks that must do alike before two lines of one function count as exchanged: roles may alternate."""


def by_lines(columns: GroupColumns) -> list[Departed]:
    """Calls skipped or made too often where all calls look alike, and pairs of them that a rank exchanged."""
    lineup = line_up(columns)
    if len(lineup.courses) < 2 or not lineup.complete:
        return []
    features = columns.words.features()
    splits = votes(lineup, [_shift(features, lineup, course.tokens) for course in lineup.courses])
    splits = [split for split in splits if _witnessed(columns, lineup, split)]
    for split in splits:
        split.sequence = lineup.start + split.edit.low
    found = [departed(columns, lineup.start, split) for split in splits]
    if not splits:
        found = [_warning(columns, lineup, split) for split in _exchanges(columns, lineup)]
    return [one for one in found if one is not None]


def _shift(features: Ints, lineup: Lineup, other: Ints) -> Departures:
    reference = lineup.courses[0].tokens
    path = None if other is reference else shifted_by_line(features, reference, other, whole=True)
    if path is not None:
        return departures(features, reference, other, path)
    return Departures([], np.arange(len(other), dtype=np.int64), len(other))


def _witnessed(columns: GroupColumns, lineup: Lineup, split: Split) -> bool:
    """Whether most of the other ranks ran these very lines; what those of other lines did is not known."""
    reference = lineup.courses[0].tokens
    here = slice(max(split.edit.low - 1, 0), split.edit.high + 1)
    for course in lineup.courses:
        if not np.array_equal(course.tokens[here], reference[here]):
            for index in course.members:
                split.rest.pop(index, None)
    return 2 * (len(split.rest) + len(split.did)) > len(columns.parts) and len(split.rest) >= len(split.did)


def _exchanges(columns: GroupColumns, lineup: Lineup) -> Iterator[Split]:
    features, carries = columns.words.features(), columns.words.carries()
    usual = usual_tokens([(course.tokens, len(course.members)) for course in lineup.courses], 1 / 2)
    splits: dict[tuple[int, tuple[int, ...]], Split] = {}
    for course in lineup.courses:
        for place in exchanged_lines(features, usual, course.tokens, carries):
            tokens = tuple(course.tokens[place : place + 2].tolist())
            edit = Edit(Kind.SWAPPED, place, place + 2, tokens)
            split = splits.setdefault((place, tokens), Split(edit, sequence=lineup.start + place))
            split.did.update((index, place) for index in course.came_past(place + 1))
    for split in splits.values():
        pair = usual[split.edit.low : split.edit.high]
        for course in lineup.courses:
            if np.array_equal(course.tokens[split.edit.low : split.edit.high], pair):
                split.rest.update((index, split.edit.low) for index in course.came_past(split.edit.low + 1))
    yield from sorted(splits.values(), key=lambda split: split.edit.low)


def _warning(columns: GroupColumns, lineup: Lineup, split: Split) -> Departed | None:
    """A warning, if the majority is clear, or the two calls stand in two functions."""
    if len(split.did) >= len(split.rest):
        return None
    did, rest = Camp(columns, lineup.start, split.did), Camp(columns, lineup.start, split.rest)
    first, second = rest.record(), rest.record(1)
    if first is None or second is None:
        return None
    apart = first.source.function != second.source.function or first.source.function == "<lambda>"
    clear = len(split.rest) > _CLEAR * (len(split.did) + len(split.rest))
    return swapped(did, rest, split, silent=True) if apart or clear else None


_CHANGES = 3
"""Changes of line that fall in step only if calls are lacking; fewer may be chance."""


def shifted_by_line(features: Ints, reference: Ints, other: Ints, *, whole: bool) -> Path | None:
    """The path by lines as well as by calls, if it is plain that calls are lacking on one side and nothing else is.

    ``whole`` demands that it holds to the last call of both.
    """
    length = min(len(reference), len(other))
    if whole and len(reference) == len(other):
        return None
    begin = common_prefix(reference, other)
    here, there = reference[begin:length], other[begin:length]
    if begin == length or bool((features[here, LINE] == features[there, LINE]).all()):
        return None
    path = align(features, reference, other, by_line=True)
    end = int((path.partner < path.reached).sum())
    if whole and (end < len(other) or path.reached < len(reference)):
        return None
    partner = path.partner[:end]
    paired = np.flatnonzero(partner >= 0)
    lacking, more = path.reached - len(paired), end - len(paired)
    if bool(lacking) == bool(more) or not np.array_equal(reference[partner[paired]], other[paired]):
        return None
    short, full = (other[:end], reference[: path.reached]) if lacking else (reference[: path.reached], other[:end])
    left = np.setdiff1d(np.arange(len(full)), partner[paired] if lacking else paired)
    return path if _plain(short, full, left) else None


def _plain(short: Ints, full: Ints, lacking: Ints) -> bool:
    """Whether the lines show that ``short`` lacks these calls of ``full``, rather than that it runs other lines.

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

    ``usual`` is what the majority did at each place (unknown where it is not of one mind), ``carries`` says by token
    whether the call moves data. Both calls are the same but for their lines, and what stands beside them agrees.
    """
    length = min(len(usual), len(other))
    apart = np.flatnonzero(usual[:length] != other[:length])
    for run in np.split(apart, np.flatnonzero(np.diff(apart) > 1) + 1) if len(apart) else []:
        # What differs to the end of a rank that is behind may be shifted as well.
        cut = len(run) and run[-1] + 1 == length and len(usual) != len(other)
        if len(run) % 2 == 0 and not cut and _plainly_exchanged(features, usual, other, run, carries):
            yield from run[::2].tolist()


def _plainly_exchanged(features: Ints, usual: Ints, other: Ints, run: Ints, carries: npt.NDArray[np.bool_]) -> bool:
    """Whether a run of differing lines is one pair of calls exchanged, once or again and again."""
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
