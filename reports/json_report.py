"""The report as JSON, schema ``simcoll.report/1``; ``docs/report.md`` describes it.

It has the summary, the findings and the parts of which they are made (groups, records, lines), and on request the last
calls of each rank and the timeline.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from importlib.resources import files
from typing import cast

from simcoll.core.record import Group, Record, Source
from simcoll.reports.causes import advice_document
from simcoll.spec.call import Call
from simcoll.verifier.findings.describe import advice_of, global_rank
from simcoll.verifier.findings.finding import (
    Bandwidth,
    Cell,
    Column,
    Finding,
    History,
    Narrowed,
    Parting,
    Place,
    Progress,
    RankState,
    Report,
    Side,
    Summary,
    Timeline,
)
from simcoll.verifier.findings.rules import RULES

SCHEMA = "simcoll.report/1"


def json_report(report: Report) -> dict[str, object]:
    """The report as JSON values. Ranks, roots and peers are global ranks."""
    document: dict[str, object] = {
        "schema": SCHEMA,
        "verdict": report.verdict.value,
        "world_size": report.world_size,
        "mode": report.mode,
        "agreed": report.agreed,
        "messages": report.messages,
        "findings": [finding_document(finding) for finding in report.findings],
        "ranks": [_rank(state, report.last.get(state.rank)) for state in report.ranks],
        "notes": list(report.notes),
        "summary": None if report.summary is None else summary_document(report.summary),
        "advice": None if report.advice is None else advice_document(report.advice),
    }
    if (coverage := report.coverage) is not None:
        document["coverage"] = {"complete": coverage.complete, **asdict(coverage), "gaps": [*coverage.gaps]}
    if report.shown is not None:
        document["shown"] = _shown(report.shown)
    if report.histories:
        document["records"] = [history_document(history) for history in report.histories]
    if report.timeline is not None:
        document["timeline"] = timeline_document(report.timeline)
    return document


def json_schema() -> dict[str, object]:
    """The JSON Schema (draft 2020-12) of :func:`json_report`."""
    text = files("simcoll.reports").joinpath("report.schema.json").read_text(encoding="utf-8")
    return cast("dict[str, object]", json.loads(text))


def _shown(shown: Narrowed) -> dict[str, object]:
    return {
        "groups": list(shown.groups),
        "ranks": list(shown.ranks),
        "hidden_errors": shown.hidden_errors,
        "hidden_warnings": shown.hidden_warnings,
    }


def finding_document(finding: Finding) -> dict[str, object]:
    """One finding, with its rule's texts and all sides."""
    rule = RULES[finding.code]
    return {
        "code": finding.code,
        "name": rule.name,
        "severity": finding.severity.value,
        "group": None if finding.group is None else group_document(finding.group),
        "sequence": finding.sequence,
        "ranks": list(finding.ranks),
        "culprits": list(finding.culprits),
        "message": finding.message,
        "advice": advice_of(finding),
        "differing": list(finding.differing),
        "unknown": list(finding.unknown),
        "sides": [_side(side, finding.group) for side in finding.sides],
        "before": [record_document(record) for record in finding.before],
        "came_apart": None
        if (apart := finding.came_apart) is None
        else {"sequence": apart.sequence, "sides": [_side(side, finding.group) for side in apart.sides]},
        "parted": None if finding.parted is None else _parting(finding.parted),
        "step": None if finding.step is None else {"number": finding.step.number, "exact": finding.step.exact},
    }


def _parting(parting: Parting) -> dict[str, object]:
    sides = [{"ranks": list(ranks), "did": did} for ranks, did in parting.sides]
    others = {"others": [line_document(one) for one in parting.others]} if parting.others else {}
    return {**line_document(parting.source), "sides": sides, **others}


def _side(side: Side, group: Group | None) -> dict[str, object]:
    return {
        "ranks": list(side.ranks),
        "call": None if side.call is None else call_document(side.call, group),
        "source": [{"rank": stated.rank, **stack_document(stated.source)} for stated in side.sources],
        "note": side.note,
    }


def call_document(call: Call, group: Group | None) -> dict[str, object]:
    """A call's fields as a report states them: only those that it has and that its record states."""
    buffers = call.inputs or call.outputs
    document: dict[str, object] = {
        "op": call.op,
        "spelling": call.spelling,
        "reduce_op": call.reduce_op,
        "dtype": buffers[0].dtype if buffers else None,
        "shapes": [list(buffer.shape) for buffer in call.inputs] or None,
        "output_shapes": [list(buffer.shape) for buffer in call.outputs] if call.outputs != call.inputs else None,
        "dtypes": [buffer.dtype for buffer in buffers] if len({buffer.dtype for buffer in buffers}) > 1 else None,
        "device": buffers[0].device if buffers else None,
        "orders": _orders(call),
        "root": _rank_number(call.root, group),
        "peer": _rank_number(call.peer, group),
        "tag": call.tag,
        "input_splits": None if call.input_splits is None else list(call.input_splits),
        "output_splits": None if call.output_splits is None else list(call.output_splits),
        "coalesced": call.coalesced or None,
        "form": call.form,
    }
    return {name: value for name, value in document.items() if value not in (None, "")}


def _orders(call: Call) -> list[list[int] | None] | None:
    """Memory orders of the inputs, where one is not row-major."""
    orders = [None if buffer.order is None else list(buffer.order) for buffer in call.inputs]
    return orders if any(order is not None for order in orders) else None


def _rank_number(group_rank: int | None, group: Group | None) -> int | str | None:
    if group_rank is None:
        return None
    text = global_rank(group, group_rank)
    return int(text) if text.isdigit() else text


def _rank(state: RankState, last: Record | None) -> dict[str, object]:
    return {
        "rank": state.rank,
        "state": state.status.value,
        "exit_code": state.exit_code,
        "last": None if last is None else record_document(last),
    }


def group_document(group: Group) -> dict[str, object]:
    """A process group."""
    return {"name": group.name, "description": group.description, "ranks": list(group.ranks)}


def line_document(source: Source) -> dict[str, object]:
    """A line of the user's program."""
    return {"file": source.file, "line": source.line, "function": source.function, "code": source.code}


def stack_document(source: Source) -> dict[str, object]:
    """A line of the user's program with the frames around it, as far as they are recorded."""
    frames = {"callers": source.callers, "through": source.through}
    return line_document(source) | {
        name: [{"file": one.file, "line": one.line, "function": one.function} for one in stack]
        for name, stack in frames.items()
    }


def record_document(record: Record) -> dict[str, object]:
    """A call as a rank wrote it down: its place in its group, and its progress."""
    return {
        "group": record.group,
        "sequence": record.sequence,
        "op": record.call.op,
        "state": record.state.name.lower(),
        "source": line_document(record.source) if record.source.file else None,
    }


def summary_document(summary: Summary) -> dict[str, object]:
    """Returns the job's summary as JSON values; times are seconds since 1970 (UTC), null where no record has one."""
    return {
        "world_size": summary.world_size,
        "recorded": summary.recorded,
        "kinds": list(summary.kinds),
        "begin": seconds(summary.begin_ns),
        "end": seconds(summary.end_ns),
        "unknown": list(summary.unknown),
        "groups": [_progress(progress) for progress in summary.progress],
        "places": [_place(place) for place in summary.places],
        "bandwidths": [bandwidth_document(bandwidth) for bandwidth in summary.bandwidths],
        "steps": [{"ended": one.number, "ranks": list(one.ranks), "seconds": one.seconds} for one in summary.steps],
    }


def seconds(time_ns: int) -> float | None:
    """A time as seconds since 1970; None where it is not known."""
    return time_ns / 1e9 if time_ns else None


def _progress(progress: Progress) -> dict[str, object]:
    return {
        "description": progress.description,
        "size": progress.size,
        "names": [group.name for group in progress.groups],
        "ranks": list(progress.members),
        "finished": None if progress.least is None else record_document(progress.least),
        "farthest": None if progress.most is None else record_document(progress.most),
        "unrecorded": progress.unrecorded,
    }


def bandwidth_document(bandwidth: Bandwidth) -> dict[str, object]:
    """The speed of collectives of one kind, in bytes per second."""
    return {
        "op": bandwidth.op,
        "bytes": bandwidth.bytes,
        "description": bandwidth.description,
        "size": bandwidth.size,
        "calls": bandwidth.calls,
        "seconds": bandwidth.seconds,
        "bus_bandwidth": bandwidth.bus_bandwidth,
        "slowest": {"seconds": bandwidth.slowest, "group": bandwidth.group.name, "sequence": bandwidth.sequence},
    }


def _place(place: Place) -> dict[str, object]:
    return {
        "ranks": list(place.ranks),
        "activity": place.activity.value,
        "state": place.process,
        "group": None if place.group is None else place.group.name,
        "groups": place.groups,
        "call": None if place.record is None else record_document(place.record),
        "message": (place.record.p2p_sequence or None) if place.record is not None else None,
        "inside": place.inside,
        "line": line_document(place.line) if place.line.file else None,
        "since": seconds(place.since_ns),
        "reason": place.reason,
    }


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
