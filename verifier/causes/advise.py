"""Asks the rules who should act on a job that failed."""

from __future__ import annotations

from collections.abc import Sequence

from simcoll.verifier.causes.facts import JobFacts
from simcoll.verifier.causes.rules import RULE_LIST
from simcoll.verifier.causes.situation import Situation
from simcoll.verifier.findings.causes import Advice
from simcoll.verifier.findings.finding import Finding, errors_of
from simcoll.verifier.halts.job import Job


def advise(job: Job, findings: Sequence[Finding], world_size: int, facts: JobFacts) -> Advice | None:
    """The advice on a job; None for one that has neither failed nor a finding of severity error."""
    at = Situation(job, errors_of(findings), world_size, facts)
    if not at.findings and not job.failures:
        return None
    found = [(rule, suspicion) for rule in RULE_LIST for suspicion in rule.find(at)]
    (_, believed), *rest = found
    return Advice(believed, tuple(suspicion for rule, suspicion in rest if rule.beside))
