"""A timeline as text: one row a crowd of ranks, one letter a call, marks that survive without colour."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from string import ascii_lowercase, ascii_uppercase

from rich.console import Console, ConsoleOptions, RenderResult
from rich.padding import Padding
from rich.text import Text

from simcoll.core.ranges import span_text
from simcoll.core.text import plain, safe
from simcoll.verifier.findings.describe import group_text
from simcoll.verifier.findings.overview import Cell, Column, Mark, Timeline

_ROWS = 24
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
        lines = _lines(timeline.columns)
        for block in _blocks(timeline.columns, options.max_width - _LABEL - 3):
            for row in _rows(timeline, block, letters, lines):
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
        return f"timeline: {shown:,} {'call' if shown == 1 else 'calls'} in order of time"
    return f"timeline: {shown:,} of {timeline.total:,} calls: those near findings, and the last ones"


def letters_of(ops: Iterable[str]) -> dict[str, str]:
    """A capital letter for each op: one of its own where it is free."""
    letters: dict[str, str] = {}
    for op in sorted(set(ops)):
        own = [letter.upper() for letter in op.split("_")[-1] + op if letter.isascii() and letter.isalpha()]
        free = (letter for letter in (*own, *ascii_uppercase) if letter not in letters.values())
        letters[op] = next(free, "?")
    return letters


def _lines(columns: Sequence[Column]) -> dict[object, str]:
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
    """Whether columns before this one are left out."""
    return columns[index].place != (columns[index - 1].place + 1 if index else 0)


def _rows(timeline: Timeline, block: range, letters: Mapping[str, str], lines: Mapping[object, str]) -> Iterator[Text]:
    columns = timeline.columns
    numbers = {index: str(columns[index].number) for index in block}
    height = max(map(len, numbers.values()))
    for row in range(height):
        digits = [(numbers[index].rjust(height)[row], "dim") for index in block]
        yield _joined("number" if row == height - 1 else "", digits, columns, block)
    groups = [(lines[_line(columns[index])] + "'" * columns[index].message, "dim") for index in block]
    yield _joined("group", groups, columns, block)
    for ranks, cells in timeline.rows[:_ROWS]:
        yield _joined(_label(ranks), [_cell(cells[index], letters) for index in block], columns, block)
    if len(timeline.rows) > _ROWS:
        rest = [rank for ranks, _ in timeline.rows[_ROWS:] for rank in ranks]
        yield Text(f"and {len(rest):,} more ranks in {len(timeline.rows) - _ROWS} more rows")


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
