"""Findings as annotations of a GitHub workflow: lines on stdout that its runner shows at the line of the program.

Source: GitHub Docs, "Workflow commands for GitHub Actions", and ``command.ts`` of actions/toolkit for what is escaped:
``%``, CR and LF everywhere, ``:`` and ``,`` also in properties. GitHub shows ten errors and ten warnings of a step.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath
from posixpath import normpath

from simcoll.core.record import Source
from simcoll.core.text import safe
from simcoll.reports.causes import cause_text, restart_text
from simcoll.reports.sarif import sentence
from simcoll.verifier.findings.describe import leading
from simcoll.verifier.findings.finding import Finding, Report
from simcoll.verifier.findings.rules import RULES


def annotated(report: Report, workspace: str) -> Iterator[str]:
    """One line a finding, and one that says who should act on a job that failed.

    Files below ``workspace`` (absolute, GITHUB_WORKSPACE) are named relative to it, as GitHub names those of a commit.
    """
    for finding in report.findings:
        about = {"title": f"{finding.code} {RULES[finding.code].name}"}
        source = _line(finding)
        if source is not None:
            about = {"file": _name(source.file, workspace), "line": str(max(source.line, 1)), **about}
        yield _command(finding.severity.value, about, sentence(finding))
    if report.advice is not None:
        one = report.advice.believed
        said = [f"Cause: {cause_text(one)}.", f"Restart: {restart_text(one)}."]
        said += [f"{each.source}: {each.text}" for each in one.evidence]
        yield _command("notice", {"title": "simcoll: who should act"}, "\n".join(said))


def _line(finding: Finding) -> Source | None:
    """The line of the culprits, or else of the first side that has one."""
    sides = sorted(finding.sides, key=finding.blames, reverse=True)
    found = next((one.source for side in sides for one in side.sources if one.source.file), None)
    return None if found is None else leading(finding.sides, found)


def _name(file: str, workspace: str) -> str:
    path, root = PurePosixPath(normpath(PurePosixPath(workspace) / file)), PurePosixPath(workspace)
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)


def _command(name: str, properties: dict[str, str], message: str) -> str:
    about = ",".join(f"{key}={_property(value)}" for key, value in properties.items())
    return f"::{name} {about}::{_data(message)}"


def _data(text: str) -> str:
    """A text of several lines as GitHub reads it back; other control characters are shown as escapes."""
    return "%0A".join(safe(line).replace("%", "%25") for line in text.split("\n"))


def _property(text: str) -> str:
    return safe(text).replace("%", "%25").replace(":", "%3A").replace(",", "%2C")
