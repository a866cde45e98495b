"""The verifier's word on a job while it runs: why it does not move, or what is wrong so far."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from simcoll.blackbox import BlackBox
from simcoll.core.trace import LaunchOutcome, Stall
from simcoll.live.now import Motion
from simcoll.verifier.findings.finding import Bandwidth, Finding, errors_of
from simcoll.verifier.postmortem import judge, standstill


@dataclass(frozen=True, slots=True)
class Ruling:
    """The verifier's last word, and what it cost in seconds; ``still``: on a job that was seen still at that moment.

    ``problem`` says why there is none.
    """

    findings: tuple[Finding, ...] = ()
    proved: bool = False
    bandwidths: tuple[Bandwidth, ...] = ()
    cost: float = 0.0
    still: bool = False
    problem: str = ""

    def told(self, motion: Motion) -> tuple[Finding, ...]:
        """The findings that hold for a job in this state: a rank for which others wait a moment is not missing yet."""
        if self.still and motion is Motion.MOVING:
            return tuple(errors_of(self.findings))
        return self.findings


def judged(
    boxes: Sequence[BlackBox],
    outcome: LaunchOutcome,
    stands: Stall | None,
    ended_for: Stall | None,
    *,
    any_failed: bool,
) -> Ruling:
    """Judge the newest records of a job: why it does not move, or what is wrong so far.

    Where nothing proves why a job stands in which a rank has failed, the failure is why.
    """
    begun = time.monotonic()
    try:
        if stands is not None:
            findings, proved = standstill(boxes, outcome, stands)
            if findings or not any_failed:
                return Ruling(findings, proved, (), time.monotonic() - begun, still=True)
        report = judge(boxes, outcome, ended_for)
    except Exception as error:
        # What else is seen of the job does not depend on it, and the next records may be judged.
        return Ruling(cost=time.monotonic() - begun, problem=f"{type(error).__name__}: {error}")
    speeds = () if report.summary is None else tuple(report.summary.bandwidths)
    return Ruling(tuple(report.findings), False, speeds, time.monotonic() - begun)
