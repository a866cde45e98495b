"""The type of a rule: a finding's stable code, its name, its advice, and the page that explains it."""

from __future__ import annotations

from dataclasses import dataclass

from simcoll.verifier.findings.finding import Severity


@dataclass(frozen=True, slots=True)
class Rule:
    """One finding code. ``advice`` is the line that a report prints; the rest is the page of ``simcoll rules CODE``.

    ``example`` is Python, run on every rank; paragraphs are plain text.
    """

    code: str
    name: str
    advice: str
    means: str
    harm: str
    example: str
    remedy: str
    severity: Severity = Severity.ERROR
