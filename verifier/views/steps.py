"""The training steps of findings, and how far each rank has come: by the program's marks, or else by repeated calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from simcoll.core.steps import StepMarks, StepNumber, Steps, call_tokens, period_of
from simcoll.core.trace import Trace
from simcoll.verifier.agreement.columns import fingerprint
from simcoll.verifier.findings.finding import CallPlace, Finding, StepsEnded

_SIDES = 8
"""So many sides at most are asked for the step: to find a rank's steps takes as long as to judge it."""


def with_steps(findings: Iterable[Finding], traces: Sequence[Trace]) -> tuple[Finding, ...]:
    """Findings that tell in which step their call was made, as far as the records do and they do not tell it yet."""
    by_rank, periods = {trace.rank: trace for trace in traces}, _Periods()
    return tuple(
        finding if finding.step is not None else replace(finding, step=_step_of(finding, by_rank, periods))
        for finding in findings
    )


class _Periods:
    """The steps of ranks that do not mark them, found once for ranks with the same sequence of calls."""

    def __init__(self) -> None:
        self._known: dict[bytes, Steps | None] = {}

    def of(self, trace: Trace) -> Steps | None:
        """The steps among all calls of a rank; None where its calls do not repeat."""
        tokens = call_tokens(trace.slots)
        key = fingerprint(tokens)
        if key not in self._known:
            self._known[key] = period_of(tokens)
        return self._known[key]


def steps_ended(traces: Sequence[Trace]) -> tuple[StepsEnded, ...]:
    """The ranks by the number of steps that they marked as ended, the most first; none where no rank marked any."""
    by_number: dict[int, list[int]] = {}
    marked = {trace.rank: marks for trace in traces if (marks := StepMarks.of(trace.events)) is not None}
    for trace in traces if marked else ():
        marks = marked.get(trace.rank)
        by_number.setdefault(0 if marks is None else marks.ended, []).append(trace.rank)
    found = []
    for number in sorted(by_number, reverse=True):
        paces = [seconds for rank in by_number[number] if rank in marked and (seconds := marked[rank].seconds)]
        found.append(StepsEnded(number, tuple(by_number[number]), float(np.median(paces)) if paces else None))
    return tuple(found)


def _step_of(finding: Finding, traces: Mapping[int, Trace], periods: _Periods) -> StepNumber | None:
    """The earliest step: a rank that makes a call too many comes to the others' next step later than they."""
    found = []
    for rank, place in _places(finding):
        trace = traces.get(rank)
        row = None if trace is None else _row(trace, place)
        if trace is not None and row is not None and (step := _step(trace, row, periods)) is not None:
            found.append(step)
    return min(found, key=lambda step: (step.number, not step.exact), default=None)


def _places(finding: Finding) -> Iterable[tuple[int, CallPlace]]:
    """The calls that a finding is about, each with a rank that may have made it: one of each side."""
    if finding.group is not None and finding.sequence is not None:
        place = CallPlace(finding.group, finding.sequence)
        ranks = [side.ranks[0] for side in finding.sides if side.ranks] or finding.ranks[:1]
        return [(rank, place) for rank in ranks[:_SIDES]]
    return [(side.ranks[0], side.place) for side in finding.sides if side.ranks and side.place is not None][:_SIDES]


def _row(trace: Trace, place: CallPlace) -> int | None:
    if place.rank not in (None, trace.rank):
        return None
    mine = [index for index, group in enumerate(trace.groups) if group == place.group]
    column = "sequence" if place.rank is None else "p2p_sequence"
    slots = trace.slots
    found = np.isin(slots["group"], mine) & (slots[column] == place.number)
    if place.rank is None:
        found &= slots["p2p_sequence"] == 0
    rows = np.flatnonzero(found)
    return int(rows[-1]) if len(rows) else None


def _step(trace: Trace, row: int, periods: _Periods) -> StepNumber | None:
    slots = trace.slots
    marks = StepMarks.of(trace.events)
    if marks is not None:
        made = int(slots["scheduled_ns"][row])
        return marks.at(made, last=made >= int(slots["scheduled_ns"].max())) if made else None
    if any(trace.dropped.values()) or any(trace.dropped_p2p.values()):
        return None
    steps = periods.of(trace)
    if steps is None or not steps.first <= row < steps.stop + steps.period:
        return None
    return StepNumber((row - steps.first) // steps.period + 1, exact=False)
