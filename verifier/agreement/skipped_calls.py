"""SC202 and SC203: calls that one rank skips, makes in addition, or makes in another order, as findings.

Some show in the source lines alone, in a group whose collectives all agree position by position (:func:`by_lines`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from simcoll.core.ranges import ranks_text, verb
from simcoll.core.record import UNKNOWN_SOURCE, Record, Source
from simcoll.verifier.agreement.alignment import STATEMENT, Ints
from simcoll.verifier.agreement.columns import GroupColumns
from simcoll.verifier.agreement.edits import Departures, Edit, EditKind, departures
from simcoll.verifier.agreement.majority import (
    Lineup,
    Split,
    exchanged_lines,
    line_up,
    shifted_by_line,
    usual_tokens,
    votes,
)
from simcoll.verifier.findings.describe import call_text, minority, presence_text, record_text, source_text
from simcoll.verifier.findings.finding import SOURCES_PER_SIDE, Finding, RankSource, Rule, Severity, Side
from simcoll.verifier.findings.rules import CALL_SKIPPED, ORDER_SWAPPED

_ASKED = 64
"""Ranks of a side whose lines are looked at."""


@dataclass(frozen=True, slots=True)
class EditFinding:
    """A finding on a call skipped, extra or exchanged, and when it was first made (wall clock, nanoseconds)."""

    finding: Finding
    time_ns: int


@dataclass(slots=True, eq=False)
class RanksAlike:
    """Ranks that did alike, by part, each with its place counted from ``start`` on; ``ranks`` are the global ones."""

    columns: GroupColumns
    start: int
    places: Mapping[int, int]
    ranks: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        parts, ranks = self.columns.parts, self.columns.group.ranks
        self.ranks = tuple(sorted(ranks[parts[index].group_rank] for index in self.places))

    def record(self, offset: int = 0) -> Record | None:
        """The call of the first part, so many after its place."""
        index = min(self.places)
        return self.columns.parts[index].at(self.start + self.places[index] + offset)

    def token(self, offset: int = 0) -> int | None:
        """The token of the first part's call there."""
        part = self.columns.parts[min(self.places)]
        place = part.place(self.start + self.places[min(self.places)] + offset)
        return None if place is None else part.token(place)

    def sources(self, offset: int = 0) -> tuple[RankSource, ...]:
        """The distinct lines from which its ranks made a call."""
        lines: dict[int, RankSource] = {}
        for index in sorted(self.places)[:_ASKED]:
            part = self.columns.parts[index]
            place = part.place(self.start + self.places[index] + offset)
            if place is None or (token := part.token(place)) in lines or len(lines) == SOURCES_PER_SIDE:
                continue
            record = part.record(place)
            if record is not None and record.source.file:
                rank = self.columns.group.ranks[part.group_rank]
                lines[token] = RankSource(rank, record.source)
        return tuple(lines.values())


def edit_finding(columns: GroupColumns, start: int, split: Split) -> EditFinding | None:
    """The finding on a split of the ranks; None where its records cannot be read.

    ``columns`` has the ranks' own sequence numbers, and ``start`` is the position from which places count.
    """
    did, rest = RanksAlike(columns, start, split.did), RanksAlike(columns, start, split.rest)
    if split.edit.kind is EditKind.SWAPPED:
        return swapped(did, rest, split)
    makers, lackers = (rest, did) if split.edit.kind is EditKind.SKIPPED else (did, rest)
    size = max(split.edit.high - split.edit.low, len(split.edit.tokens))
    # Calls in a row may begin at any of several alike: where the ranks come apart, they make unlike calls.
    begins = split.edit.slack % size
    first, record = makers.record(), makers.record(begins)
    if first is None or record is None:
        return None
    culprits = minority(makers.ranks, lackers.ranks)
    sequence = split.sequence if culprits == lackers.ranks else first.sequence
    message = presence_text(makers.ranks, lackers.ranks, record.call.op, sequence, size, split.edit.slack)
    sides = [
        Side(makers.ranks, record.call, makers.sources(begins), "" if size == 1 else f"made {size} calls here"),
        lacking_side(lackers, size, split.edit.slack),
    ]
    return _edit_finding(columns, CALL_SKIPPED, CALL_SKIPPED.severity, message, sequence, culprits, sides, record)


def lacking_side(lackers: RanksAlike, size: int, slack: int) -> Side:
    """The side of those who made no such calls: they stood at the call that they made next, or had made last.

    Of calls that look alike they made ``slack``, so that their next call is the one behind these.
    """
    following = lackers.record(slack)
    around = following or lackers.record(slack - 1)
    stood = UNKNOWN_SOURCE if around is None else around.source
    return Side(lackers.ranks, None, (), _around(lackers, size, slack), past=following is None, stood=stood)


def _around(lackers: RanksAlike, size: int, slack: int) -> str:
    before, after = lackers.record(slack - 1), lackers.record(slack)
    calls = [f"after {record_text(before)}"] if before is not None else []
    calls += [f"before {record_text(after)}"] if after is not None else []
    return f"made no such {'call' if size == 1 else 'calls'}" + (f" ({', '.join(calls)})" if calls else "")


def swapped(did: RanksAlike, rest: RanksAlike, split: Split, *, silent: bool = False) -> EditFinding | None:
    """SC203; ``silent`` is an exchange that nothing but the lines gives away: a warning."""
    size = split.edit.high - split.edit.low
    usual, odd = rest.record(), did.record()
    if usual is None or odd is None:
        return None
    first, second = _names(usual, odd)
    one, other = did.ranks, rest.ranks
    last = split.sequence + size - 1
    message = (
        f"{ranks_text(one)} {verb(one, 'makes', 'make')} {second} before {first}, {ranks_text(other)} "
        f"{verb(other, 'makes', 'make')} {first} before {second} (collectives {split.sequence} to {last})"
    )
    if silent:
        message += "; the calls look alike, so that each is combined with the other one's data"
    sides = [
        Side(other, usual.call, _both(rest, _later(rest, size, did.token()))),
        Side(one, odd.call, _both(did, _later(did, size, rest.token()))),
    ]
    severity = Severity.WARNING if silent else ORDER_SWAPPED.severity
    culprits = minority(did.ranks, rest.ranks)
    return _edit_finding(rest.columns, ORDER_SWAPPED, severity, message, split.sequence, culprits, sides, usual)


def _both(alike: RanksAlike, later: int) -> tuple[RankSource, ...]:
    """The lines of the call of ranks and of the one so many behind it; a line that makes both is one.

    A helper's line counts once for each stack by which ranks came to it.
    """
    both = {(one.rank, one.source.stack): one for one in (*alike.sources(), *alike.sources(later))}
    return tuple(both.values())[:SOURCES_PER_SIDE]


def _later(alike: RanksAlike, size: int, wanted: int | None) -> int:
    """The distance behind their place at which ranks make the call that this token stands for."""
    features = alike.columns.words.features()
    tokens = [alike.token(offset) for offset in range(1, size)]
    for kind in (slice(None), STATEMENT):
        for offset, token in enumerate(tokens, 1):
            if token is not None and wanted is not None and (features[token, kind] == features[wanted, kind]).all():
                return offset
    return size - 1


def _names(usual: Record, odd: Record) -> tuple[str, str]:
    """Both calls in words, as short as tells them apart."""
    if usual.call.op != odd.call.op:
        return usual.call.op, odd.call.op
    if call_text(usual.call) != call_text(odd.call):
        return call_text(usual.call), call_text(odd.call)
    places = _apart(usual.source, odd.source)
    functions = [place.function for place in places]
    if all(functions) and functions[0] != functions[1]:
        return f"the {usual.call.op} in {functions[0]}", f"the {odd.call.op} in {functions[1]}"
    first, second = map(source_text, places)
    return f"the {usual.call.op} at {first}", f"the {odd.call.op} at {second}"


def _apart(one: Source, other: Source) -> tuple[Source, Source]:
    """The innermost frames that tell two calls apart: their lines, or of one line the callers that differ."""
    pairs = zip((one, *one.callers), (other, *other.callers), strict=False)
    return next(((a, b) for a, b in pairs if a != b), (one, other))


def _edit_finding(
    columns: GroupColumns,
    rule: Rule,
    severity: Severity,
    message: str,
    sequence: int,
    culprits: tuple[int, ...],
    sides: Sequence[Side],
    first: Record,
) -> EditFinding:
    found = rule.finding(
        message,
        severity=severity,
        group=columns.group,
        sequence=sequence,
        ranks=(rank for one in sides for rank in one.ranks),
        culprits=culprits,
        sides=tuple(sorted(sides, key=lambda one: -len(one.ranks))),
    )
    return EditFinding(found, first.scheduled_ns)


_CLEAR = 2 / 3
"""The share of ranks that must do alike before two lines of one function count as exchanged: roles may alternate."""


def by_lines(columns: GroupColumns) -> list[EditFinding]:
    """Calls skipped or made too often where all calls look alike, and pairs of them that a rank exchanged.

    Where their lines show nothing, as those of one helper, their callers are asked, the innermost first.
    """
    if len(columns.classes()) < 2:
        return []
    callers = max((len(source.callers) for part, _ in columns.classes() for source in part.stated.sources), default=0)
    told = (columns.by_stack(depth) for depth in range(1, callers + 1))
    asked = (_by_lines(one) for one in chain([columns], (one for one in told if one is not columns)))
    return next((found for found in asked if found), [])


def _by_lines(columns: GroupColumns) -> list[EditFinding]:
    lineup = line_up(columns)
    if len(lineup.courses) < 2 or not lineup.complete:
        return []
    features = columns.words.features()
    splits = votes(lineup, [_shift(features, lineup, course.tokens) for course in lineup.courses])
    splits = [split for split in splits if _witnessed(columns, lineup, split)]
    for split in splits:
        split.sequence = lineup.start + split.edit.low
    found = [edit_finding(columns, lineup.start, split) for split in splits]
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
    """True if most of the other ranks ran these very lines; what those of other lines did is not known."""
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


def _warning(columns: GroupColumns, lineup: Lineup, split: Split) -> EditFinding | None:
    """A warning, if the majority is clear, or the two calls stand in two functions.

    The depth of a recursion tells no two calls of a program apart.
    """
    if len(split.did) >= len(split.rest):
        return None
    did, rest = RanksAlike(columns, lineup.start, split.did), RanksAlike(columns, lineup.start, split.rest)
    first, second = rest.record(), rest.record(1)
    if first is None or second is None:
        return None
    if {first.source, *first.source.callers} == {second.source, *second.source.callers}:
        return None
    one, other = _apart(first.source, second.source)
    apart = one.function != other.function or one.function == "<lambda>"
    clear = len(split.rest) > _CLEAR * (len(split.did) + len(split.rest))
    return swapped(did, rest, split, silent=True) if apart or clear else None
