"""What the majority of a group's ranks did, call for call, and who departed from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from simcoll.verifier.agreement.alignment import Ints, Path, align
from simcoll.verifier.agreement.columns import GroupColumns, Part
from simcoll.verifier.agreement.edits import Departures, Edit, EditKind, departures
from simcoll.verifier.agreement.lineup import Lineup, line_up
from simcoll.verifier.agreement.source_lines import shifted_by_line


@dataclass(slots=True, eq=False)
class Split:
    """An edit, and which parts (by index) did it and which did not, each with its own place there.

    ``sequence`` is the position among what the majority did.
    """

    edit: Edit
    did: dict[int, int] = field(default_factory=dict)
    rest: dict[int, int] = field(default_factory=dict)
    sequence: int = 0

    @property
    def overruled(self) -> bool:
        """Whether most ranks did it, so that it is the reference that departs."""
        return len(self.did) > len(self.rest)


@dataclass(frozen=True, slots=True, eq=False)
class Consensus:
    """Who departed where, and the group's calls put side by side as they belong together."""

    start: int
    splits: tuple[Split, ...]
    realigned: GroupColumns


def consensus(columns: GroupColumns) -> Consensus | None:
    """Align all ranks' calls; None where all that can be compared stand in line already."""
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
    """What most ranks did at each place; it may be that no rank did all of it."""
    found = _departures(features, reference, lineup, paths, swaps=False)
    overruled = [split.edit for split in votes(lineup, found) if split.overruled]
    for edit in sorted(overruled, key=lambda edit: -edit.low):
        reference = np.concatenate([reference[: edit.low], np.array(edit.tokens, np.int64), reference[edit.high :]])
    return reference


def _paths(features: Ints, reference: Ints, lineup: Lineup) -> list[Path]:
    return [
        shifted_by_line(features, reference, course.tokens, whole=False) or align(features, reference, course.tokens)
        for course in lineup.courses
    ]


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
    for split in splits.values():
        for course, departed in zip(lineup.courses, found, strict=True):
            place = _arrival(departed, split.edit.low)
            if place is not None and split.edit not in departed.edits:
                split.rest.update((index, place) for index in course.came_past(place))
    return sorted((one for one in splits.values() if one.did and one.rest), key=lambda one: one.edit.low)


def _arrival(departed: Departures, low: int) -> int | None:
    """Where a course comes to this place of the reference, or past it."""
    past = departed.partner >= low
    place = int(past.argmax()) if len(past) else 0
    return place if len(past) and past[place] else None


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
    """The position of each call of the reference among what the majority did, -1 for those that the majority lacks.

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
