"""What was asked for beside the findings, as JSON values: the last calls of each rank, and the timeline."""

from __future__ import annotations

from simcoll.core.record import Record
from simcoll.reports.json_summary import group_document, record_document, seconds
from simcoll.verifier.findings.overview import Cell, Column, History, Timeline


def history_document(history: History) -> dict[str, object]:
    """The last calls of ranks that made the same ones; times are those of the first rank."""
    return {"ranks": list(history.ranks), "records": [_record(record) for record in history.records]}


def timeline_document(timeline: Timeline) -> dict[str, object]:
    """Ranks by collectives: a row has one cell a column, null where its ranks have nothing to do with it."""
    return {
        "total": timeline.total,
        "columns": [_column(column) for column in timeline.columns],
        "rows": [{"ranks": list(ranks), "cells": [_cell(cell) for cell in cells]} for ranks, cells in timeline.rows],
    }


def _record(record: Record) -> dict[str, object]:
    return {
        **record_document(record),
        "message": record.p2p_sequence or None,
        "scheduled": seconds(record.scheduled_ns),
        "finished": seconds(record.finished_ns),
    }


def _column(column: Column) -> dict[str, object]:
    return {
        "place": column.place,
        "group": group_document(column.group),
        "groups": column.groups,
        "sequence": None if column.message else column.number,
        "message": column.number if column.message else None,
        "time": seconds(column.time_ns),
    }


def _cell(cell: Cell) -> dict[str, object] | None:
    if cell.mark.value == "outside" and not cell.op:
        return None
    return {"op": cell.op or None, "mark": cell.mark.value, "differs": cell.differs}
