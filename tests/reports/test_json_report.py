"""The report as JSON: the contract's document, valid under the schema that is shipped."""

from __future__ import annotations

import json

import jsonschema  # type: ignore[import-untyped]
import pytest

from simcoll.call import Buffer, Call
from simcoll.record import Group, Record, Source
from simcoll.reports.json_report import json_report, json_schema
from simcoll.verifier.compare import compare
from simcoll.verifier.finding import Finding, RankState, RankStatus, Report, Severity, Side, Verdict
from simcoll.verifier.rules import RULES

TENSORS = (Buffer((20, 10), "float32", order=(1, 0)),)


def a_report(*findings: Finding) -> Report:
    last = Record("0", 7, Call("barrier", "barrier"))
    states = (RankState(0, RankStatus.FAILED, -9, last), RankState(1, RankStatus.RUNNING))
    return Report(Verdict.FINDINGS, 2, "detail", findings, states, 6, ("a note",))


def mismatch() -> Finding:
    group = Group("0", "default_pg", (4, 5, 7))
    calls = [Call("broadcast", "broadcast", TENSORS, TENSORS, root=root) for root in (0, 0, 1)]
    line = Source("train.py", 41, "step", "dist.broadcast(x, 4)")
    (finding,) = compare(group, {rank: Record("0", 7, call, line) for rank, call in enumerate(calls)})
    return finding


def checked(report: Report) -> dict[str, object]:
    document = json.loads(json.dumps(json_report(report)))
    jsonschema.Draft202012Validator.check_schema(json_schema())
    jsonschema.validate(document, json_schema())
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
        {"rank": 7, "file": "train.py", "line": 41, "function": "step", "code": "dist.broadcast(x, 4)"}
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
