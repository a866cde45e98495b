"""The report as JSON, schema ``simcoll.report/1``; ``docs/report.md`` describes it."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import cast

from simcoll.core.record import Group
from simcoll.reports.json_summary import group_document, record_document, source_document, summary_document
from simcoll.reports.json_timeline import history_document, timeline_document
from simcoll.spec.call import Call
from simcoll.verifier.findings.describe import global_rank
from simcoll.verifier.findings.finding import CameApart, Finding, RankState, Report, Shown, Side
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
        "findings": [_finding(finding) for finding in report.findings],
        "ranks": [_rank(state) for state in report.ranks],
        "notes": list(report.notes),
        "summary": None if report.summary is None else summary_document(report.summary),
    }
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


def _shown(shown: Shown) -> dict[str, object]:
    return {
        "groups": list(shown.groups),
        "ranks": list(shown.ranks),
        "hidden_errors": shown.hidden_errors,
        "hidden_warnings": shown.hidden_warnings,
    }


def _finding(finding: Finding) -> dict[str, object]:
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
        "advice": rule.advice,
        "differing": list(finding.differing),
        "unknown": list(finding.unknown),
        "sides": [_side(side, finding.group) for side in finding.sides],
        "before": [record_document(record) for record in finding.before],
        "came_apart": None if finding.came_apart is None else _apart(finding.came_apart, finding.group),
    }


def _apart(apart: CameApart, group: Group | None) -> dict[str, object]:
    return {"sequence": apart.sequence, "sides": [_side(side, group) for side in apart.sides]}


def _side(side: Side, group: Group | None) -> dict[str, object]:
    return {
        "ranks": list(side.ranks),
        "call": None if side.call is None else call_document(side.call, group),
        "source": [{"rank": stated.rank, **source_document(stated.source)} for stated in side.sources],
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


def _rank(state: RankState) -> dict[str, object]:
    return {
        "rank": state.rank,
        "state": state.status.value,
        "exit_code": state.exit_code,
        "last": None if state.last is None else record_document(state.last),
    }
