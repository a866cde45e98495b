"""The report as SARIF: valid under the standard's own schema, on the culprit's line, the same from run to run."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from simcoll.cli.demo import demo_report
from simcoll.core.record import Group, Record, Source
from simcoll.reports import sarif
from simcoll.reports.github import annotated
from simcoll.reports.sarif import FINGERPRINT, sarif_report
from simcoll.spec.call import Buffer, Call
from simcoll.verifier.agreement.compare import compare
from simcoll.verifier.findings.finding import Finding, Parting, RankSource, Report, Severity, Side, Verdict
from simcoll.verifier.findings.rules import RULES
from tests.support.documents import check_sarif

ROOT = Path("/home/ada/project")
TENSORS = (Buffer((20, 10), "float32"),)
GROUP = Group("0", "default_pg", (0, 1, 2, 3))


def a_report(*findings: Finding, verdict: Verdict = Verdict.FINDINGS) -> Report:
    return Report(verdict, 4, "detail", findings, (), 6, ("a {note}",))


def mismatch(file: str = "/home/ada/project/src/train.py", line: int = 41, culprit: int = 2) -> Finding:
    records = {}
    for rank in range(4):
        call = Call("all_reduce", "allreduce", TENSORS, TENSORS, reduce_op="max" if rank == culprit else "sum")
        at = Source(file, line + 2 * (rank == culprit), "step", f"dist.all_reduce(x, {call.reduce_op})")
        records[rank] = Record("0", 7, call, at)
    (finding,) = compare(GROUP, records)
    return finding


def run_of(report: Report, exit_code: int = 3) -> dict[str, Any]:
    document = json.loads(json.dumps(sarif_report(report, exit_code, ROOT)))
    check_sarif(document)
    assert document["version"] == "2.1.0"
    (run,) = document["runs"]
    return dict(run)


def result_of(finding: Finding) -> dict[str, Any]:
    (result,) = run_of(a_report(finding))["results"]
    return dict(result)


def test_the_culprits_line_comes_first_and_the_others_are_related() -> None:
    result = result_of(mismatch())
    assert (result["ruleId"], result["level"], result["kind"]) == ("SC104", "error", "fail")
    assert "rank 2 reduces with max, ranks 0-1 and 3 reduce with sum" in result["message"]["text"]
    assert "Culprits: rank 2." in result["message"]["text"]
    (at,) = result["locations"]
    assert at["physicalLocation"] == {
        "artifactLocation": {"uri": "src/train.py", "uriBaseId": "SRCROOT"},
        "region": {"startLine": 43, "snippet": {"text": "dist.all_reduce(x, max)"}},
    }
    (other,) = result["relatedLocations"]
    assert other["physicalLocation"]["region"]["startLine"] == 41
    assert other["message"]["text"].startswith("ranks 0-1 and 3: all_reduce(")


def test_a_rule_stands_where_its_index_says() -> None:
    run = run_of(a_report(mismatch()))
    rules = run["tool"]["driver"]["rules"]
    assert [rule["id"] for rule in rules] == list(RULES)
    assert rules[run["results"][0]["ruleIndex"]]["id"] == "SC104"
    assert rules[3]["name"] == "ReduceOpMismatch"
    for rule, known in zip(rules, RULES.values(), strict=True):
        assert rule["defaultConfiguration"] == {"level": known.severity.value}
        assert all(rule[name]["text"] for name in ("shortDescription", "fullDescription", "help"))
        assert rule["help"]["markdown"].startswith(f"# {known.code}")


def test_a_clean_job_has_no_results() -> None:
    run = run_of(Report(Verdict.OK, 4, "detail", (), (), 9), 0)
    assert run["results"] == []
    (invocation,) = run["invocations"]
    assert (invocation["exitCode"], invocation["executionSuccessful"]) == (0, True)
    assert run["originalUriBaseIds"] == {"SRCROOT": {"uri": "file:///home/ada/project/"}}


@pytest.mark.parametrize("severity", Severity)
@pytest.mark.parametrize("code", RULES)
def test_every_code_is_valid_with_and_without_lines(code: str, severity: Severity) -> None:
    bare = Finding(code, severity, "m")
    side = Side((1,), None, (RankSource(1, Source("train.py", 0, "step")),), "ended")
    run = run_of(a_report(bare, replace(bare, sides=(side,), ranks=(1,), culprits=(1,), group=GROUP)))
    assert [result["level"] for result in run["results"]] == [severity.value] * 2
    assert run["results"][0]["locations"] == [{"logicalLocations": [{"name": "job", "kind": "resource"}]}]
    assert run["results"][1]["locations"][0]["physicalLocation"]["region"]["startLine"] == 1


@pytest.mark.parametrize(
    ("file", "uri", "relative"),
    [
        ("/home/ada/project/src/train.py", "src/train.py", True),
        ("train.py", "train.py", True),
        ("./a b/c#d.py", "a%20b/c%23d.py", True),
        ("C:odd.py", "C%3Aodd.py", True),
        ("/opt/lib/model.py", "file:///opt/lib/model.py", False),
        ("../shared/model.py", "file:///home/ada/shared/model.py", False),
        ("/home/ada/project/../../etc/x.py", "file:///home/etc/x.py", False),
        ("/home/ada/projects/x.py", "file:///home/ada/projects/x.py", False),
        ("caf\u00e9.py", "caf%C3%A9.py", True),
    ],
)
def test_files_below_the_root_are_relative_to_it(file: str, uri: str, relative: bool) -> None:
    at = result_of(mismatch(file))["locations"][0]["physicalLocation"]["artifactLocation"]
    assert at == ({"uri": uri, "uriBaseId": "SRCROOT"} if relative else {"uri": uri})


def test_fingerprints_survive_other_lines_and_other_ranks() -> None:
    def fingerprint(finding: Finding) -> str:
        return str(result_of(finding)["partialFingerprints"][FINGERPRINT])

    first = fingerprint(mismatch())
    assert fingerprint(mismatch(line=141)) == first
    assert fingerprint(mismatch(culprit=1)) == first
    assert fingerprint(mismatch(file="src/train.py")) == first
    assert fingerprint(mismatch(file="src/other.py")) != first
    assert fingerprint(replace(mismatch(), code="SC105")) != first


def test_two_findings_never_share_a_fingerprint() -> None:
    results = run_of(a_report(mismatch(), mismatch()))["results"]
    assert len({result["partialFingerprints"][FINGERPRINT] for result in results}) == 2


def test_hostile_text_stays_text() -> None:
    hostile = "\x1b[31m{0}[x](http://y)\ud800\n"
    finding = replace(mismatch(file=hostile), message=hostile, group=Group(hostile, hostile, (0, 1, 2, 3)))
    result = result_of(finding)
    assert "{{0}}" in result["message"]["text"]
    json.dumps(result).encode("utf-8")


@pytest.mark.slow
def test_a_real_report() -> None:
    run = run_of(demo_report())
    assert [result["ruleId"] for result in run["results"]] == ["SC104"]
    assert run["properties"]["worldSize"] == 4


def test_rules_have_addresses_where_the_project_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert all("helpUri" not in rule for rule in run_of(a_report())["tool"]["driver"]["rules"])
    message = metadata.metadata("simcoll")
    monkeypatch.setattr(
        message, "get_all", lambda name: ["Documentation, https://docs.invalid/simcoll/"], raising=False
    )
    monkeypatch.setattr(sarif.metadata, "metadata", lambda name: message)
    rules = run_of(a_report())["tool"]["driver"]["rules"]
    assert rules[0]["helpUri"] == "https://docs.invalid/simcoll/rules/SC101"


def test_a_finding_in_a_helper_is_located_where_the_sides_differ() -> None:
    finding, helper = mismatch(), Source("/home/ada/project/src/utils.py", 6, "mean", "dist.all_reduce(t)")
    callers = [Source("/home/ada/project/src/train.py", line, "step", "mean(t)") for line in (41, 44)]
    sides = tuple(
        replace(side, sources=(RankSource(side.ranks[0], replace(helper, callers=(caller,))),))
        for side, caller in zip(finding.sides, callers, strict=True)
    )
    report = a_report(replace(finding, sides=sides))
    result = run_of(report)["results"][0]
    assert result["locations"][0]["physicalLocation"]["region"]["startLine"] == 44
    (annotation,) = annotated(report, "/home/ada/project")
    assert annotation.startswith("::error file=src/train.py,line=44,")


def test_the_line_that_parted_the_ranks_is_related_and_stacks_are_stacks() -> None:
    fork = Source("/home/ada/project/src/train.py", 9, "step", "if rank == 0:")
    caller = Source("/home/ada/project/src/train.py", 90, "main", "step()")
    finding = mismatch()
    guilty = replace(finding.sides[1].sources[0], source=replace(finding.sides[1].sources[0].source, callers=(caller,)))
    sides = finding.sides[0], replace(finding.sides[1], sources=(guilty,))
    told = replace(finding, sides=sides, parted=Parting(fork, (((2,), "took it"), ((0, 1, 3), "did not take it"))))
    result = run_of(a_report(told))["results"][0]
    related = result["relatedLocations"][0]
    assert related["physicalLocation"]["region"]["startLine"] == 9
    assert related["message"]["text"] == "ranks parted here: rank 2 took it, ranks 0-1 and 3 did not take it"
    frames = [one["location"]["physicalLocation"]["region"]["startLine"] for one in result["stacks"][0]["frames"]]
    assert frames == [43, 90]
