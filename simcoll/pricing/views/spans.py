"""A priced job as the timeline of a page: the ranks' programs over time, and their collectives below."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from simcoll.core.record import Group
from simcoll.core.units import show_size
from simcoll.pricing.job import Stream
from simcoll.pricing.price import Pricing
from simcoll.pricing.views.predicted_trace import predicted
from simcoll.pricing.views.summary import StepCosts
from simcoll.reports.price_page import COLLECTIVE, COMPUTE, EXPOSED, WAITING, Span, Spans, laned
from simcoll.reports.trace_event import Slice
from simcoll.verifier.views.summary import kind_of

MOST = 150_000
"""Slices of a page; a trace-event file holds more."""

_ROWS = 24
_EACH = 3


def spans_of(priced: Pricing, steps: StepCosts | None, most: int = MOST) -> Spans:
    """The timeline, of as many ranks as fit: first, last, slowest, and some between."""
    longest = max((len(program) for program in priced.job.programs), default=1)
    timeline = predicted(priced, min(most, _ROWS * _EACH * max(longest, 1)))
    names = {name: about.partition(" ")[2] or about for (_, name), about in timeline.threads.items()}
    groups, places = _groups(priced.job.streams, timeline.processes)
    by_rank: dict[int, list[Slice]] = defaultdict(list)
    for each in timeline.slices:
        by_rank[each.process].append(each)
    spans = [
        span for row, rank in enumerate(timeline.processes) for span in _row(_Row(row, places), by_rank[rank], names)
    ]
    ops = dict.fromkeys(span.op for span in spans if span.op)
    end = max([round(priced.seconds * 1e9), *(span.end for span in spans)])
    note = timeline.note.partition(": ")[0]
    return Spans(tuple(timeline.processes), tuple(ops), tuple(spans), end, _middle(steps), note, groups)


def _groups(
    streams: Sequence[Stream], ranks: Collection[int]
) -> tuple[tuple[tuple[Group, int], ...], dict[tuple[int, object], int]]:
    """One group of each kind with their number, and the place of the kind for each rank and name of a group."""
    kinds: dict[tuple[str, int], list[Group]] = {}
    for group in dict.fromkeys(stream.group for stream in streams):
        kinds.setdefault(kind_of(group), []).append(group)
    places: dict[tuple[int, object], int] = {
        (rank, group.name): place
        for place, alike in enumerate(kinds.values())
        for group in alike
        for rank in ranks
        if group.place(rank) is not None
    }
    return tuple((alike[0], len(alike)) for alike in kinds.values()), places


def _middle(steps: StepCosts | None) -> tuple[int, int] | None:
    """The middle one of several steps."""
    if steps is None or len(steps.steps) < 2:
        return None
    step = steps.steps[len(steps.steps) // 2]
    return round(step.begin * 1e9), round((step.begin + step.seconds) * 1e9)


@dataclass(frozen=True, slots=True)
class _Row:
    """A row of the timeline, and which group of it a rank means by a name."""

    number: int
    places: Mapping[tuple[int, object], int]

    def group(self, each: Slice) -> int:
        return self.places.get((each.process, each.args["group"]), 0)


def _row(row: _Row, slices: list[Slice], names: dict[int, str]) -> Iterator[Span]:
    program = [each for each in slices if each.thread == 0]
    for each in program:
        yield from _of_program(row, each)
    others = sorted((each for each in slices if each.thread), key=lambda each: (each.begin, each.end))
    lanes = laned([each.begin for each in others], [each.end for each in others])
    found = [_of_stream(row, lane, each, names) for lane, each in zip(lanes, others, strict=True)]
    yield from sorted(found, key=lambda span: (span.lane, span.begin))


def _of_program(row: _Row, each: Slice) -> Iterator[Span]:
    """Compute; or what a rank waits for the others, and then for the call itself."""
    if each.name == "compute":
        yield Span(row.number, 0, COMPUTE, "", 0, "", each.begin, each.end)
        return
    group, number = row.group(each), each.args["sequence"]
    assert isinstance(number, int)
    waiting = each.args.get("waiting_us", 0.0)
    come = min(each.begin + round(waiting * 1e3 if isinstance(waiting, float) else 0), each.end)
    op = each.name.removeprefix("wait for ")
    if come > each.begin:
        yield Span(row.number, 0, WAITING, op, number, "", each.begin, come, group)
    if each.end > come:
        yield Span(row.number, 0, EXPOSED, op, number, "", come, each.end, group)


def _of_stream(row: _Row, lane: int, each: Slice, names: dict[int, str]) -> Span:
    args = each.args
    size, ranks, number = args["bytes"], args["ranks"], args["sequence"]
    assert isinstance(size, int) and isinstance(number, int)  # noqa: PT018
    moved = [show_size(size)] if size else []
    said = [*moved, " ".join(filter(None, map(_text, (args["algorithm"], args["protocol"])))), names[each.thread]]
    words = ", ".join(filter(None, said)) + f" ({ranks} rank{'s' * (ranks != 1)})"
    return Span(row.number, lane, COLLECTIVE, each.name, number, words, each.begin, each.end, row.group(each))


def _text(value: object) -> str:
    return "" if value is None else str(value)
