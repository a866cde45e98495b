"""A look at a running job as a JSON document, ``simcoll.job/1``; ``job.schema.json`` beside it describes it."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

from simcoll.core.record import Record
from simcoll.live.now import GroupNow, JobNow, RankNow
from simcoll.reports.json_report import (
    bandwidth_document,
    finding_document,
    group_document,
    json_schema,
    line_document,
    seconds,
    stack_document,
)

SCHEMA = "simcoll.job/1"


def job_document(job: JobNow) -> dict[str, object]:
    """The document: times in seconds, shares from 0 to 1, null where the records do not tell."""
    return {
        "schema": SCHEMA,
        "folder": job.folder,
        "time": seconds(job.time_ns),
        "world_size": job.world_size,
        "mode": job.mode,
        "motion": job.motion.value,
        "why": job.why,
        "still_seconds": job.still_seconds,
        "proved": job.proved,
        "step_seconds": job.step_seconds,
        "calls_per_second": job.calls_per_second,
        "groups": [_group(view) for view in job.groups],
        "ranks": [_rank(one) for one in job.ranks],
        "unseen": list(job.unseen),
        "bandwidths": [bandwidth_document(one) for one in job.bandwidths],
        "findings": [finding_document(finding) for finding in job.findings],
    }


def job_schema() -> dict[str, object]:
    """The JSON Schema of :func:`job_document`, together with the definitions of reports that it uses."""
    text = resources.files("simcoll.live").joinpath("job.schema.json").read_text(encoding="utf-8")
    schema: dict[str, Any] = json.loads(text)
    definitions: dict[str, Any] = json_schema()["$defs"]  # type: ignore[assignment]
    return schema | {"$defs": definitions | schema["$defs"]}


def _group(view: GroupNow) -> dict[str, object]:
    return {
        "group": group_document(view.group),
        "finished": view.finished,
        "op": view.op or None,
        "source": line_document(view.source),
        "came": list(view.came),
        "absent": list(view.absent),
        "unknown": list(view.unknown),
        "for_seconds": view.for_seconds,
    }


def _rank(one: RankNow) -> dict[str, object]:
    return {
        "rank": one.rank,
        "host": one.host,
        "pid": one.pid,
        "doing": one.doing.value,
        "for_seconds": one.for_seconds,
        "group": None if one.group is None else one.group.name,
        "call": None if one.record is None else _call(one.record),
        "waits_for": list(one.waits_for),
        "waiting": one.waiting,
        "late": one.late,
        "step_seconds": one.step_seconds,
        "steps": one.steps,
        "calls": one.calls,
        "lost": one.lost,
        "exit_code": one.exit_code,
        "error": one.error or None,
        "place": one.place or None,
        "silent_seconds": one.silent_seconds or None,
        "problem": one.problem or None,
    }


def _call(record: Record) -> dict[str, object]:
    return {
        "op": record.call.op,
        "sequence": record.sequence,
        "p2p_sequence": record.p2p_sequence or None,
        "state": record.state.name.lower(),
        "source": stack_document(record.source),
    }
