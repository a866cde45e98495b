"""Annotations of a GitHub workflow: one line each, escaped as the runner reads them back, files as in a commit."""

from __future__ import annotations

import re
from dataclasses import replace

from simcoll.core.record import Source
from simcoll.reports.github import annotated
from simcoll.verifier.findings.finding import Finding, RankSource, Report, Severity
from tests.reports.test_causes import ADVICE
from tests.reports.test_sarif import a_report, mismatch

ROOT = "/home/ada/project"
COMMAND = re.compile(r"::(?P<name>\w+) (?P<about>[^\r\n]*?)::(?P<text>[^\r\n]*)")


def read_back(line: str) -> tuple[str, dict[str, str], str]:
    """A command as the runner reads it (actions/runner, ActionCommand.cs): the last escape it undoes is that of %."""
    found = COMMAND.fullmatch(line)
    assert found is not None, line
    about = dict(one.split("=", 1) for one in found["about"].split(","))
    return found["name"], {key: unescaped(value) for key, value in about.items()}, unescaped(found["text"])


def unescaped(text: str) -> str:
    for code, character in (("%0D", "\r"), ("%0A", "\n"), ("%3A", ":"), ("%2C", ","), ("%25", "%")):
        text = text.replace(code, character)
    return text


def only(report: Report, workspace: str = ROOT) -> tuple[str, dict[str, str], str]:
    [line] = annotated(report, workspace)
    return read_back(line)


def test_an_error_on_the_line_of_the_culprit() -> None:
    name, about, text = only(a_report(mismatch()))
    assert name == "error"
    assert about == {"file": "src/train.py", "line": "43", "title": "SC104 reduce-op-mismatch"}
    assert text.startswith("rank 2 reduces with max, ranks 0-1 and 3 reduce with sum. In")


def test_a_warning() -> None:
    assert only(a_report(replace(mismatch(), severity=Severity.WARNING)))[0] == "warning"


def test_files_outside_of_the_workspace_keep_their_path() -> None:
    assert only(a_report(mismatch("/opt/lib/loss.py")))[1]["file"] == "/opt/lib/loss.py"
    assert only(a_report(mismatch("/home/ada/project2/x.py")))[1]["file"] == "/home/ada/project2/x.py"
    assert only(a_report(mismatch("src/../train.py")))[1]["file"] == "train.py"


def test_a_finding_without_a_line_has_no_file() -> None:
    assert only(a_report(replace(mismatch(), sides=())))[1] == {"title": "SC104 reduce-op-mismatch"}


def with_file(finding: Finding, file: str) -> Finding:
    sides = tuple(replace(side, sources=(RankSource(0, Source(file, 0, "f")),)) for side in finding.sides)
    return replace(finding, sides=sides)


def test_texts_from_outside_stay_within_their_command() -> None:
    hostile = "100%\r\n::error::owned, a:b\x1b[31m"
    lines = [*annotated(a_report(with_file(replace(mismatch(), message=hostile), f"/x/{hostile}.py")), ROOT)]
    assert len(lines) == 1
    assert not set(lines[0]) & set("\r\n\x1b")
    name, about, text = read_back(lines[0])
    assert (name, about["line"], sorted(about)) == ("error", "1", ["file", "line", "title"])
    assert "100%" in about["file"]
    assert "::error::owned, a:b" in about["file"]
    assert text.startswith("100%")


def test_who_should_act_is_a_notice() -> None:
    *_, line = annotated(replace(a_report(mismatch()), advice=ADVICE), ROOT)
    name, about, text = read_back(line)
    assert (name, about) == ("notice", {"title": "simcoll: who should act"})
    cause, restart, *_ = text.splitlines()
    assert (cause, restart) == (
        "Cause: a machine (rank 2 on node-1), strong evidence.",
        "Restart: yes, without node-1.",
    )
