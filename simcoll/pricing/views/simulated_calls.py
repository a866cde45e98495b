"""The costs of a simulated run's calls in virtual time, line by line of the program."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.text import Text

from simcoll.core.record import Record, State
from simcoll.core.trace import Trace, record_at
from simcoll.spec.call import bytes_of

if TYPE_CHECKING:
    from simcoll.reports.page_shell import PageTable

MOST_ROWS = 40


@dataclass(frozen=True, slots=True)
class PricedLine:
    """The calls of one line: how many, what they moved, and how long they took, in seconds of virtual time.

    ``bytes`` are those of the largest side of one call. ``seconds`` runs from the moment when the last rank has come to
    the moment when the last one goes on, ``waiting`` is what ranks waited for each other before, on average.
    """

    file: str
    line: int
    op: str
    group: str
    calls: int
    bytes: int
    seconds: float
    waiting: float


def priced_lines(traces: Sequence[Trace]) -> list[PricedLine]:
    """The lines of a run in the order in which the first rank came to them."""
    calls: dict[tuple[object, ...], list[Record]] = defaultdict(list)
    for trace in traces:
        for row in range(len(trace.slots)):
            record = record_at(trace, row)
            if record is not None and record.state is State.COMPLETED:
                # The two ends of a message are calls of their own.
                apart = (trace.rank, record.p2p_sequence) if record.p2p_sequence else ()
                calls[(record.group, record.sequence, apart)].append(record)
    descriptions = {group.name: group.description for trace in traces for group in trace.groups}
    lines: dict[tuple[str, int, str, str], list[list[Record]]] = defaultdict(list)
    for records in calls.values():
        first = records[0]
        lines[(first.source.file, first.source.line, first.call.op, first.group)].append(records)
    ordered = sorted(lines.items(), key=lambda item: min(record.scheduled_ns for each in item[1] for record in each))
    return [_line(*key[:3], descriptions.get(key[3], key[3]), each) for key, each in ordered]


def _line(file: str, line: int, op: str, group: str, calls: Sequence[Sequence[Record]]) -> PricedLine:
    seconds = waiting = 0.0
    for records in calls:
        last = max(record.scheduled_ns for record in records)
        seconds += (max(record.finished_ns for record in records) - last) / 1e9
        waiting += sum(last - record.scheduled_ns for record in records) / len(records) / 1e9
    largest = max(_bytes(records[0]) for records in calls)
    return PricedLine(file, line, op, group, len(calls), largest, seconds, waiting)


def _bytes(record: Record) -> int:
    return max(bytes_of(side) or 0 for side in (record.call.inputs, record.call.outputs))


def priced_table(lines: Sequence[PricedLine], seconds: float) -> RenderableType:
    """The lines as a table, with the total of the run."""
    from simcoll.core.units import show_size
    from simcoll.pricing.views.text import table_of

    rows = [
        (
            f"{each.op} :{each.line}",
            each.group,
            f"{each.calls:,}",
            show_size(each.bytes),
            *(f"{took * 1e6:,.1f}" for took in (each.seconds / each.calls, each.seconds, each.waiting)),
        )
        for each in lines[:MOST_ROWS]
    ]
    headings = "call", "group", "calls", "size", "us a call", "us in all", "us waited"
    table = table_of(f"{seconds * 1e6:,.1f} us of virtual time", *headings, left=2, rows=rows)
    if len(lines) > MOST_ROWS:
        table.caption = Text(f"and {len(lines) - MOST_ROWS} more lines")
    return table


def priced_sheet(lines: Sequence[PricedLine], seconds: float) -> PageTable:
    """The lines as a table of a page."""
    from simcoll.core.units import show_size
    from simcoll.pricing.views.text import shown
    from simcoll.reports.page_shell import PageTable

    hidden = len(lines) - MOST_ROWS
    rows = tuple(
        (
            each.op,
            f"{each.file}:{each.line}",
            each.group,
            f"{each.calls:,}",
            show_size(each.bytes),
            shown(each.seconds / each.calls),
            shown(each.seconds),
            shown(each.waiting),
        )
        for each in lines[:MOST_ROWS]
    )
    headings = "call", "line", "group", "calls", "size", "each", "in all", "waited"
    note = f"and {hidden:,} more lines" if hidden > 0 else ""
    return PageTable(f"What the calls cost: {shown(seconds)} of virtual time", headings, rows, 3, note)
