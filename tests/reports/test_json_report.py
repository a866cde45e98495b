"""The report as JSON: the contract's document, valid under the schema that is shipped."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from jsonschema import ValidationError  # type: ignore[import-untyped]

from simcoll.core.record import Group, Record, Source
from simcoll.reports.json_report import json_schema
from simcoll.spec.call import Buffer, Call
from simcoll.verifier.agreement.compare import compare
from simcoll.verifier.findings.finding import (
    Activity,
    Cell,
    Column,
    Finding,
    History,
    Mark,
    Narrowed,
    Place,
    Progress,
    RankState,
    RankStatus,
    Report,
    Severity,
    Side,
    Summary,
    Timeline,
    Verdict,
)
from simcoll.verifier.findings.rules import RULES
from tests.support.documents import check_report, valid_report

TENSORS = (Buffer((20, 10), "float32", order=(1, 0)),)


NO_STACK: dict[str, object] = {"callers": [], "through": []}


def a_report(*findings: Finding) -> Report:
    states = (RankState(0, RankStatus.FAILED, -9), RankState(1, RankStatus.RUNNING))
    last = {0: Record("0", 7, Call("barrier", "barrier"))}
    return Report(Verdict.FINDINGS, 2, "detail", findings, states, 6, ("a note",), last=last)


def mismatch() -> Finding:
    group = Group("0", "default_pg", (4, 5, 7))
    calls = [Call("broadcast", "broadcast", TENSORS, TENSORS, root=root) for root in (0, 0, 1)]
    line = Source("train.py", 41, "step", "dist.broadcast(x, 4)")
    (finding,) = compare(group, {rank: Record("0", 7, call, line) for rank, call in enumerate(calls)})
    return finding


def checked(report: Report) -> dict[str, object]:
    document = json.loads(json.dumps(valid_report(report)))
    assert isinstance(document, dict)
    return document


def test_a_mismatch_is_the_contracts_document() -> None:
    document = checked(a_report(mismatch()))
    assert (document["schema"], document["verdict"], document["world_size"]) == ("simcoll.report/1", "findings", 2)
    finding = document["findings"][0]  # type: ignore[index]
    assert (finding["code"], finding["name"], finding["severity"]) == ("SC105", "root-mismatch", "error")
    assert finding["group"] == {"name": "0", "description": "default_pg", "ranks": [4, 5, 7]}
    assert (finding["sequence"], finding["ranks"], finding["culprits"]) == (7, [4, 5, 7], [7])
    side = finding["sides"][1]
    assert side["call"]["root"] == 5
    assert side["call"]["shapes"] == [[20, 10]]
    assert side["source"] == [
        {"rank": 7, "file": "train.py", "line": 41, "function": "step", "code": "dist.broadcast(x, 4)", **NO_STACK}
    ]


def test_ranks_say_where_they_ended() -> None:
    ranks = checked(a_report())["ranks"]
    assert ranks[0]["exit_code"] == -9  # type: ignore[index]
    assert ranks[0]["last"]["op"] == "barrier"  # type: ignore[index]
    assert ranks[1] == {"rank": 1, "state": "running", "exit_code": None, "last": None}  # type: ignore[index]


@pytest.mark.parametrize("code", RULES)
def test_every_code_is_valid_without_a_group(code: str) -> None:
    bare = Finding(code, Severity.WARNING, "m", sides=(Side((1,), None, (), "ended"),))
    checked(a_report(bare))


def test_an_exchange_states_its_splits() -> None:
    call = Call(
        "all_to_all", "alltoall_base", TENSORS, (Buffer((3,), "int8"),), input_splits=(1, 19), output_splits=(3, 0)
    )
    document = checked(a_report(Finding("SC106", Severity.ERROR, "m", sides=(Side((0,), call),))))
    said = document["findings"][0]["sides"][0]["call"]  # type: ignore[index]
    assert (said["input_splits"], said["output_splits"], said["output_shapes"]) == ([1, 19], [3, 0], [[3]])


GROUP = Group("0", "default_pg", (0, 1))
RECORD = Record("0", 7, Call("barrier", "barrier"), Source("train.py", 41, "step"), scheduled_ns=5 * 10**8)


@pytest.mark.parametrize("activity", Activity)
def test_the_summary_is_valid_whatever_ranks_do(activity: Activity) -> None:
    places = [
        Place((0,), activity, "running", GROUP, 1, RECORD, True, RECORD.source, 10**9, "raised ValueError"),
        Place((1,), activity, "failed"),
    ]
    progress = (Progress("default_pg", 2, (GROUP,), (0, 1), RECORD, RECORD), Progress("", 2, (GROUP,), (0, 1)))
    summary = Summary(2, 2, ("detail",), 10**9, 2 * 10**9, progress, tuple(places), ("root",))
    document: Any = checked(replace(a_report(), summary=summary))["summary"]
    assert (document["begin"], document["end"], document["unknown"]) == (1.0, 2.0, ["root"])
    assert document["groups"][0]["finished"]["sequence"] == 7
    assert document["groups"][1]["finished"] is None
    assert document["places"][0]["line"]["line"] == 41
    assert document["places"][0]["since"] == 1.0
    assert document["places"][1]["call"] is None


def test_what_was_asked_for_is_there_and_otherwise_not() -> None:
    bare = checked(a_report())
    assert not {"shown", "records", "timeline"} & set(bare)
    timeline = Timeline(
        (Column(3, GROUP, 1, 4, False, 0), Column(4, GROUP, 2, 1, True, 10**9)),
        (((0, 1), (Cell(Mark.DONE, "barrier", True), Cell(Mark.ABSENT))), ((2,), (Cell(Mark.OUTSIDE),) * 2)),
        9,
    )
    history = History((0, 1), (RECORD,), (GROUP,))
    document: Any = checked(
        replace(a_report(), shown=Narrowed(("0",), (1,), 2, 3), histories=(history,), timeline=timeline)
    )
    assert document["shown"] == {"groups": ["0"], "ranks": [1], "hidden_errors": 2, "hidden_warnings": 3}
    assert document["records"][0]["records"][0]["scheduled"] == 0.5
    assert [(column["sequence"], column["message"]) for column in document["timeline"]["columns"]] == [
        (4, None),
        (None, 1),
    ]
    assert document["timeline"]["rows"][0]["cells"] == [
        {"op": "barrier", "mark": "done", "differs": True},
        {"op": None, "mark": "absent", "differs": False},
    ]
    assert document["timeline"]["rows"][1]["cells"] == [None, None]


def test_unknown_keys_fail() -> None:
    document = checked(a_report(mismatch()))
    for place in (document, document["findings"][0], document["findings"][0]["sides"][0]["call"]):  # type: ignore[index]
        place["surprise"] = 1
        with pytest.raises(ValidationError):
            check_report(document)
        del place["surprise"]


def test_the_documented_fields_are_the_schemas() -> None:
    page = (Path(__file__).parents[2] / "docs" / "report.md").read_text(encoding="utf-8")
    schema: Any = json_schema()
    names = {name for part in (schema, *schema["$defs"].values()) for name in part["properties"]}
    assert sorted(name for name in names if f"`{name}`" not in page) == []
