"""The summary at the head of a report as text: the kind of its records, its groups' progress, its ranks' places.

On request also the last calls of each rank, ranks that made the same ones together, and a timeline: one row a crowd of
ranks, one letter a call, marks that survive without colour.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from string import ascii_lowercase, ascii_uppercase

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.console import Group as Stack
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from simcoll.core.ranges import ranks_text, span_text, verb
from simcoll.core.record import Group, Record
from simcoll.core.text import plain, safe
from simcoll.core.units import counted, show_rate, show_seconds, show_size
from simcoll.verifier.findings.describe import NAMELESS, group_name, group_text, source_text
from simcoll.verifier.findings.finding import (
    DRY_RUN,
    Activity,
    Bandwidth,
    Cell,
    Column,
    History,
    Mark,
    Place,
    Progress,
    StepsEnded,
    Summary,
    Timeline,
)

_RECORDING = ("record", "check", "detail")
"""Modes of simcoll's own records; records of other modes are the work of another recorder."""

_OTHERS = {"flight recorder": "torch's Flight Recorder"}

_ROWS = 8
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_FIRST_JOB_NS = 10**17
"""Times before 1973 are those of simulated ranks, whose clocks begin at zero."""


def render_summary(summary: Summary) -> RenderableType:
    """The summary as labelled rows; long lists of groups and places are cut."""
    table = _rows()
    table.add_row(Text("job", "dim"), plain(job_text(summary)))
    if summary.progress:
        table.add_row(Text("finished", "dim"), _lines(progress_text(one) for one in summary.progress))
    if summary.places:
        table.add_row(Text("now", "dim"), _places(summary))
    if summary.steps:
        table.add_row(Text("steps", "dim"), _lines(map(steps_text, summary.steps)))
    if summary.bandwidths:
        _add_speeds(table, summary)
    return Padding(table, (0, 0, 0, 2))


def render_speeds(summary: Summary) -> RenderableType:
    """Renders the bandwidths of collectives on devices, as a table by itself."""
    table = _rows()
    _add_speeds(table, summary)
    return Padding(table, (0, 0, 0, 2))


def _rows() -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    return table


def _add_speeds(table: Table, summary: Summary) -> None:
    table.add_row(Text("speed", "dim"), _lines(map(bandwidth_text, summary.bandwidths), "sizes"))


def job_text(summary: Summary) -> str:
    """``8 ranks recorded in mode detail, 2026-11-21 12:00:00 to 12:03:07 UTC``."""
    of = "" if summary.recorded == summary.world_size else f" of {summary.world_size:,}"
    noun = "rank" if summary.world_size == 1 else "ranks"
    modes = [kind for kind in summary.kinds if kind in _RECORDING]
    said = [f"in mode {' and '.join(modes)}"] if modes else []
    said += ["in a dry run"] if DRY_RUN in summary.kinds else []
    others = [kind for kind in summary.kinds if kind and kind not in (*_RECORDING, DRY_RUN)]
    said += [f"by {_OTHERS.get(kind, kind)}" for kind in others]
    how = f" recorded {' and '.join(said)}".rstrip()
    return f"{summary.recorded:,}{of} {noun}{how}{_span(summary)}"


def progress_text(progress: Progress) -> str:
    """``default_pg (ranks 0-7): all_reduce #183 at train.py:41 in step``; groups of one kind together."""
    lacking = f" ({counted(progress.unrecorded, 'member')} unrecorded)" if progress.unrecorded else ""
    return f"{groups_text(progress)}: {_reached(progress)}{lacking}"


def groups_text(progress: Progress) -> str:
    """``default_pg (ranks 0-7)``, ``4 groups mesh_tp of 2 ranks (ranks 0-7)``."""
    first, number = progress.groups[0], len(progress.groups)
    if number == 1:
        return f"{group_name(first)} ({ranks_text(first.ranks)})"
    named = f" {progress.description}" if progress.description else ""
    return f"{number:,} groups{named} of {counted(progress.size, 'rank')} ({ranks_text(progress.members)})"


def steps_text(steps: StepsEnded) -> str:
    """``ranks 0-3 ended 120 steps, the last ones in 0.52 s each``."""
    pace = "" if steps.seconds is None else f", the last ones in {show_seconds(steps.seconds)} each"
    return f"{ranks_text(steps.ranks)} ended {counted(steps.number, 'step')}{pace}"


def bandwidth_text(bandwidth: Bandwidth) -> str:
    """``all_reduce of 64 MiB on 8 ranks of default_pg: 312.40 GB/s bus bandwidth (median of 20; ...)``."""
    of = f" of {bandwidth.description}" if bandwidth.description else ""
    slowest = bandwidth.bus_bandwidth * bandwidth.seconds / bandwidth.slowest
    number = f"#{bandwidth.sequence} of group {bandwidth.group.name}"
    rest = f"median of {bandwidth.calls:,}; slowest {show_rate(slowest)}, {number}" if bandwidth.calls > 1 else number
    return (
        f"{bandwidth.op} of {show_size(bandwidth.bytes)} on {bandwidth.size:,} ranks{of}: "
        f"{show_rate(bandwidth.bus_bandwidth)} bus bandwidth ({rest})"
    )


def place_text(place: Place) -> str:
    """Describes the activity of ranks: ``wait in all_reduce #184 of default_pg at train.py:41 since 12:03:07``."""
    # A launcher that ends a job stops its ranks one by one, with whatever signal it takes.
    return _doing(place) + ("; stopped" if place.process == "stopped" else "")


def _doing(place: Place) -> str:
    if place.record is None:
        return {Activity.ENDED: "ended", Activity.FAILED: "failed"}.get(place.activity, "no call recorded") + _why(
            place
        )
    call = _call(place)
    if place.activity is Activity.WAITS:
        return f"{verb(place.ranks, 'waits', 'wait')} in {call}{_since(place)}"
    if place.activity is Activity.OPEN:
        return f"{verb(place.ranks, 'has', 'have')} {call} open{_since(place)}"
    if place.activity is Activity.OWN_CODE:
        own = verb(place.ranks, "is in its own code", "are in their own code")
        at = f" at {source_text(place.line)}" if place.line.file else ""
        return f"{own}{at} after {call}"
    relation = "in" if place.inside else "after"
    return f"{place.activity.value} {relation} {call}{_why(place)}"


def _why(place: Place) -> str:
    return f": {place.reason}" if place.reason else ""


def _call(place: Place) -> str:
    record, group = place.record, place.group
    if record is None or group is None:
        return ""
    number = f"message #{record.p2p_sequence}" if record.p2p_sequence else f"#{record.sequence}"
    kind = "" if group.description in NAMELESS else group.description
    of = group_name(group) if place.groups == 1 else f"{place.groups:,} groups {kind}".rstrip()
    at = f" at {text}" if (text := source_text(record.source)) else ""
    return f"{record.call.op} {number} of {of}{at}"


def _places(summary: Summary) -> RenderableType:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(max_width=24)
    table.add_column(overflow="fold")
    for place in summary.places[:_ROWS]:
        table.add_row(plain(ranks_text(place.ranks)), plain(place_text(place)))
    if len(summary.places) > _ROWS:
        rest = [rank for place in summary.places[_ROWS:] for rank in place.ranks]
        table.add_row(plain(ranks_text(rest)), plain(f"at {len(summary.places) - _ROWS} more places"))
    return table


def _lines(texts: Iterator[str], kind: str = "kinds of groups") -> RenderableType:
    found = list(texts)
    shown = [plain(text) for text in found[:_ROWS]]
    if len(found) > _ROWS:
        shown.append(plain(f"and {len(found) - _ROWS} more {kind}"))
    return Stack(*shown)


def _reached(progress: Progress) -> str:
    if progress.most is None:
        return "none that all ranks finished"
    most = progress.most
    at = f" at {text}" if (text := source_text(most.source)) else ""
    if progress.least is None:
        return f"some groups finished none, the farthest {most.call.op} #{most.sequence}{at}"
    if progress.least.sequence == most.sequence:
        return f"{most.call.op} #{most.sequence}{at}"
    return f"#{progress.least.sequence} (group {progress.least.group}) to #{most.sequence} (group {most.group})"


def _span(summary: Summary) -> str:
    if not summary.begin_ns:
        return ""
    if summary.end_ns < _FIRST_JOB_NS:
        return f", {(summary.end_ns - summary.begin_ns) / 1e9:.6f} s of virtual time"
    begin, end = instant(summary.begin_ns), instant(summary.end_ns)
    until = f"{end:%H:%M:%S}" if begin.date() == end.date() else f"{end:%Y-%m-%d %H:%M:%S}"
    return f", {begin:%Y-%m-%d %H:%M:%S} to {until} UTC"


def _since(place: Place) -> str:
    return f" since {instant(place.since_ns):%H:%M:%S}" if place.since_ns >= _FIRST_JOB_NS else ""


def instant(time_ns: int) -> datetime:
    """A time of the wall clock in UTC; a damaged file's time beyond all calendars becomes the last day."""
    try:
        return _EPOCH + timedelta(microseconds=time_ns // 1000)
    except OverflowError:
        return datetime.max.replace(tzinfo=timezone.utc)


_SHOWN = 16
_COLUMNS = 6


def render_histories(histories: Sequence[History]) -> RenderableType:
    """One table a crowd of ranks; where there are many crowds, the first ones."""
    parts: list[RenderableType] = []
    for history in histories[:_SHOWN]:
        parts += [plain(f"last calls of {ranks_text(history.ranks)}", "bold"), Padding(_table(history), (0, 0, 0, 2))]
    if len(histories) > _SHOWN:
        rest = [rank for history in histories[_SHOWN:] for rank in history.ranks]
        parts.append(plain(f"and {len(rest):,} more ranks with other calls; --ranks shows them"))
    return Stack(*parts)


def _table(history: History) -> RenderableType:
    if not history.records:
        return Text("no call recorded")
    table = Table.grid(padding=(0, 2, 0, 0))
    for _ in range(_COLUMNS - 1):
        table.add_column()
    table.add_column(overflow="fold")
    for row in history_rows(history):
        table.add_row(*map(plain, row))
    return table


def history_rows(history: History) -> list[tuple[str, ...]]:
    """Time, op, number, group, state and line of each call, in words."""
    return [_cells(record, group) for record, group in zip(history.records, history.groups, strict=True)]


def _cells(record: Record, group: Group) -> tuple[str, ...]:
    number = f"message {record.p2p_sequence}" if record.p2p_sequence else f"#{record.sequence}"
    at = f"{instant(record.scheduled_ns):%H:%M:%S.%f}"[:-3] if record.scheduled_ns else ""
    return at, record.call.op, number, group_name(group), record.state.name.lower(), source_text(record.source)


_TIMELINE_ROWS = 24
_GROUPS = 12
_LABEL = 20
_GAP = ": "
_SIGNS = {Mark.OPEN: "~", Mark.FAILED: "x"}
_STYLES = {Mark.OPEN: "yellow", Mark.FAILED: "red"}
_MARKS = "~ not ended   x failed or refused   ! differs from the others   . never made   : calls between are left out"


@dataclass(frozen=True, slots=True)
class TimelineText:
    """A timeline that draws itself in the width it is given, in as many blocks of columns as that needs."""

    timeline: Timeline

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        timeline = self.timeline
        yield plain(_title(timeline), "bold")
        letters = letters_of(cell.op for _, cells in timeline.rows for cell in cells if cell.op)
        lines = _row_lines(timeline.columns)
        for block in _blocks(timeline.columns, options.max_width - _LABEL - 3):
            for row in _block_rows(timeline, block, letters, lines):
                row.no_wrap, row.overflow = True, "crop"
                yield Padding(row, (0, 0, 0, 2))
            yield Text("")
        if timeline.columns:
            yield from (Padding(plain(text), (0, 0, 0, 2)) for text in _legend(timeline, letters, lines))


def _title(timeline: Timeline) -> str:
    shown = len(timeline.columns)
    if not shown:
        return "timeline: no call was recorded"
    if shown == timeline.total:
        return f"timeline: {counted(shown, 'call')} in order of time"
    return f"timeline: {shown:,} of {timeline.total:,} calls: those near findings, and the last ones"


def letters_of(ops: Iterable[str]) -> dict[str, str]:
    """A capital letter for each op: one of its own where it is free."""
    letters: dict[str, str] = {}
    for op in sorted(set(ops)):
        own = [letter.upper() for letter in op.split("_")[-1] + op if letter.isascii() and letter.isalpha()]
        free = (letter for letter in (*own, *ascii_uppercase) if letter not in letters.values())
        letters[op] = next(free, "?")
    return letters


def _row_lines(columns: Sequence[Column]) -> dict[object, str]:
    """A small letter for each process group, or for groups that share columns."""
    lines = list(dict.fromkeys(map(_line, columns)))
    return {
        line: ascii_lowercase[number] if number < len(ascii_lowercase) else "?" for number, line in enumerate(lines)
    }


def _line(column: Column) -> object:
    return column.group.name, column.group.ranks


def _blocks(columns: Sequence[Column], width: int) -> Iterator[range]:
    """Columns that fit beside each other, by index."""
    start, used = 0, 0
    for index in range(len(columns)):
        needed = 2 + len(_GAP) * _gap(columns, index)
        if used + needed > width and index > start:
            yield range(start, index)
            start, used = index, 0
        used += needed
    if start < len(columns):
        yield range(start, len(columns))


def _gap(columns: Sequence[Column], index: int) -> bool:
    """True if columns before this one are left out."""
    return columns[index].place != (columns[index - 1].place + 1 if index else 0)


def _block_rows(
    timeline: Timeline, block: range, letters: Mapping[str, str], lines: Mapping[object, str]
) -> Iterator[Text]:
    columns = timeline.columns
    numbers = {index: str(columns[index].number) for index in block}
    height = max(map(len, numbers.values()))
    for row in range(height):
        digits = [(numbers[index].rjust(height)[row], "dim") for index in block]
        yield _joined("number" if row == height - 1 else "", digits, columns, block)
    groups = [(lines[_line(columns[index])] + "'" * columns[index].message, "dim") for index in block]
    yield _joined("group", groups, columns, block)
    for ranks, cells in timeline.rows[:_TIMELINE_ROWS]:
        yield _joined(_label(ranks), [_cell(cells[index], letters) for index in block], columns, block)
    if len(timeline.rows) > _TIMELINE_ROWS:
        rest = [rank for ranks, _ in timeline.rows[_TIMELINE_ROWS:] for rank in ranks]
        yield Text(f"and {len(rest):,} more ranks in {len(timeline.rows) - _TIMELINE_ROWS} more rows")


def _joined(label: str, cells: Sequence[tuple[str, str]], columns: Sequence[Column], block: range) -> Text:
    text = Text(label.ljust(_LABEL), "")
    for index, (cell, style) in zip(block, cells, strict=True):
        text.append(_GAP if _gap(columns, index) else "", "dim")
        text.append(cell.ljust(2), style)
    text.rstrip()
    return text


def _label(ranks: Sequence[int]) -> str:
    label = f"{'rank' if len(ranks) == 1 else 'ranks'} {span_text(ranks)}"
    return label if len(label) < _LABEL else f"{len(ranks):,} ranks from {ranks[0]}"


def _cell(cell: Cell, letters: Mapping[str, str]) -> tuple[str, str]:
    if not cell.op:
        return (".", "") if cell.mark is Mark.ABSENT else ("", "")
    sign = "!" if cell.differs else _SIGNS.get(cell.mark, "")
    return letters[cell.op] + sign, "bold reverse" if cell.differs else _STYLES.get(cell.mark, "")


def _legend(timeline: Timeline, letters: Mapping[str, str], lines: Mapping[object, str]) -> Iterator[str]:
    yield "   ".join(f"{letter} {safe(op)}" for op, letter in letters.items())
    yield _MARKS + ("   ' message" if any(column.message for column in timeline.columns) else "")
    first = {_line(column): column for column in reversed(timeline.columns)}
    for line, letter in list(lines.items())[:_GROUPS]:
        column = first[line]
        more = f", and {column.groups - 1:,} more of its kind" if column.groups > 1 else ""
        yield f"{letter} {group_text(column.group)}{more}"
    if len(lines) > _GROUPS:
        yield f"and {len(lines) - _GROUPS} more groups"
