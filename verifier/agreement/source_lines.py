"""Calls that look alike on the wire, told apart by the lines that made them.

Ranks may well reach one call from different lines (branches, logging), so that a line by itself proves nothing. Lines
tell which call is lacking only where all else is in line with them, and that two calls were exchanged only where the
exchange is plain and most ranks stand against it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from simcoll.verifier.agreement.alignment import UNKNOWN, Ints, Path, align, common_prefix
from simcoll.verifier.agreement.words import LINE, STATEMENT

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
