"""Findings that only the source lines give away, in a group whose collectives all agree position by position."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from simcoll.verifier.agreement.alignment import Ints
from simcoll.verifier.agreement.columns import GroupColumns
from simcoll.verifier.agreement.edits import Departures, Edit, EditKind, departures
from simcoll.verifier.agreement.lineup import Lineup, line_up
from simcoll.verifier.agreement.majority import Split, votes
from simcoll.verifier.agreement.skipped_calls import Camp, Departed, departed, swapped
from simcoll.verifier.agreement.source_lines import exchanged_lines, shifted_by_line, usual_tokens

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
            edit = Edit(EditKind.SWAPPED, place, place + 2, tokens)
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
