"""The exit code of a command that reports on a job; :mod:`simcoll.errors` has the codes."""

from __future__ import annotations

from simcoll.errors import CANNOT_START, FINDINGS, OK
from simcoll.verifier.findings.finding import Report, Severity, Verdict
from simcoll.verifier.findings.rules import RULES


def exit_code(report: Report, *, strict: bool = False) -> int:
    """3 for findings of severity error, 1 for a job that failed before any group existed, otherwise 0.

    ``strict`` counts warnings that mean a race or lost data as errors.
    """
    if any(one.severity is Severity.ERROR or (strict and RULES[one.code].loses_data) for one in report.findings):
        return FINDINGS
    return CANNOT_START if report.verdict is Verdict.FAILED else OK
