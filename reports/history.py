"""The last calls of each rank as text, ranks that made the same ones together."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group as Stack
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from simcoll.core.ranges import ranks_text
from simcoll.core.record import Group, Record
from simcoll.core.text import plain
from simcoll.reports.overview import instant
from simcoll.verifier.findings.describe import group_name, source_text
from simcoll.verifier.findings.overview import History

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
