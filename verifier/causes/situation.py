"""What the rules of causes judge: a verdict, the failures behind it, and what is known of the job's hosts."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from simcoll.verifier.causes.facts import HostFacts, JobFacts
from simcoll.verifier.findings.finding import Finding
from simcoll.verifier.findings.rules import INVALID_ARGUMENT, RANK_FAILED
from simcoll.verifier.halts.failures import Failure, Nature
from simcoll.verifier.halts.job import Job

_SHELL: Final = 128
"""A shell that ran the rank gives this and the number of the signal that ended it as the exit code."""


@dataclass(frozen=True)
class Situation:
    """A judged job: its findings of severity error, in the order in which they are shown, and what is known of it."""

    job: Job
    findings: Sequence[Finding]
    world_size: int
    facts: JobFacts

    @cached_property
    def first(self) -> Finding | None:
        """The finding that is shown first: causes come before symptoms."""
        return self.findings[0] if self.findings else None

    @cached_property
    def failed(self) -> Mapping[int, Failure]:
        """The failures that the verdict holds to be the cause: the first finding's, or without findings the first."""
        failures = self.job.failures
        if self.first is not None:
            mine = self.first.culprits or self.first.ranks
            failing = self.first.code in (RANK_FAILED.code, INVALID_ARGUMENT.code)
            return {rank: failures[rank] for rank in mine if failing and rank in failures}
        first = next((one for one in failures.values() if one.nature is Nature.OWN), None)
        alike = (one for one in failures.values() if first is not None and _alike(one, first))
        return {one.rank: one for one in alike}

    @cached_property
    def own(self) -> Mapping[int, Failure]:
        """Those of them that have their cause in their own rank."""
        return {rank: one for rank, one in self.failed.items() if one.nature is Nature.OWN}

    @cached_property
    def suspects(self) -> tuple[int, ...]:
        """The ranks that the first finding names, or that failed first."""
        named = () if self.first is None else self.first.culprits
        return tuple(sorted(named or self.own))

    def signal_of(self, failure: Failure) -> int:
        """The number of the signal that ended a rank, or a command that it ran; 0 where none did."""
        code = 0 if failure.type or failure.exit_code is None else failure.exit_code
        known = code - _SHELL in {one.value for one in signal.Signals}
        return -code if code < 0 else code - _SHELL if known else 0

    def host(self, name: str) -> HostFacts:
        """What is known of a host."""
        return next((one for one in self.facts.by_host if one.host == name), HostFacts(name))


def _alike(one: Failure, first: Failure) -> bool:
    return one.rank == first.rank or (one.nature is first.nature and one.text() == first.text())
