"""OpenTelemetry spans of a running job: of its steps, and of the collectives in which it stood.

It needs opentelemetry-sdk (``pip install 'simcoll[otel]'``).
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from opentelemetry.trace import Span, Status, StatusCode, Tracer

from simcoll.core.io import printable
from simcoll.live.now import GroupNow, JobNow, Motion

MOST_SPANS = 16
"""Groups of which a span is made at a look, the largest first."""

MOST_RANKS = 64
"""Ranks that a span names."""

_LONGEST = 200


class StandingSpans:
    """One span for each collective in which the job stands, from when its first rank came until the job moves on.

    A span says ``ERROR`` if its collective was never finished, otherwise nothing of its status.
    """

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._open: dict[tuple[str, tuple[int, ...], int], Span] = {}
        self._last_ns = 0

    def take(self, job: JobNow) -> None:
        """Begin and end spans by a look at the job."""
        self._last_ns = job.time_ns
        finished = {(view.group.name, view.group.ranks): view.finished for view in job.groups}
        for key in [*self._open]:
            name, ranks, sequence = key
            done = finished.get((name, ranks), 0) >= sequence
            if done or job.motion is not Motion.STANDING:
                self._end(key, failed=not done and job.motion is Motion.ENDED)
        if job.motion is Motion.STANDING:
            views = [view for view in job.groups if view.came]
            for view in sorted(views, key=lambda view: -len(view.group.ranks))[:MOST_SPANS]:
                self._begin(job, view)

    def close(self) -> None:
        """End the spans that are open, at the time of the last look."""
        for key in [*self._open]:
            self._end(key, failed=True)

    def _begin(self, job: JobNow, view: GroupNow) -> None:
        key = view.group.name, view.group.ranks, view.finished + 1
        if key not in self._open:
            began = job.time_ns - int(view.for_seconds * 1e9)
            self._open[key] = self._tracer.start_span(
                f"{_shown(view.op)} stands", start_time=began, attributes=_attributes(job, view)
            )

    def _end(self, key: tuple[str, tuple[int, ...], int], *, failed: bool) -> None:
        span = self._open.pop(key)
        if failed:
            span.set_status(Status(StatusCode.ERROR, "the collective was not finished"))
        span.end(self._last_ns)


class StepSpans:
    """One span for each step whose end is written down from the first look on, by the marks of the lowest rank.

    Marks are thinned out where they are written (:func:`simcoll.core.steps.is_marked`): a span then covers the steps
    since the mark before. The first step has none: no mark tells when it began.
    """

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._told: int | None = None
        self._told_ns = 0

    def take(self, job: JobNow) -> None:
        """Make the spans of the steps that have ended since the last look."""
        if job.marks is None:
            self._told = self._told or 0
            return
        numbers, times = job.marks.numbers.tolist(), job.marks.times.tolist()
        if self._told is None:
            told = numbers[-1]
        else:
            # The marks of a job that has been started again begin anew, behind all that have been told.
            again = numbers[-1] < self._told or times[0] > self._told_ns
            told = 0 if again else self._told
        self._told, self._told_ns = numbers[-1], times[-1]
        marks = zip(numbers, times, strict=True)
        for (before, begin), (number, end) in pairwise(marks):
            if number > told:
                attributes = {"simcoll.step": number, "simcoll.steps": number - before}
                self._tracer.start_span("step", start_time=begin, attributes=attributes).end(end)


def _attributes(job: JobNow, view: GroupNow) -> Mapping[str, str | int | tuple[int, ...] | tuple[str, ...]]:
    return {
        "simcoll.op": _shown(view.op),
        "simcoll.group": _shown(view.group.description or view.group.name),
        "simcoll.group_size": len(view.group.ranks),
        "simcoll.sequence": view.finished + 1,
        "simcoll.came": view.came[:MOST_RANKS],
        "simcoll.absent": view.absent[:MOST_RANKS],
        "simcoll.why": _shown(job.why),
        "simcoll.findings": tuple(sorted({finding.code for finding in job.findings})),
        "code.file.path": _shown(view.source.file),
        "code.line.number": view.source.line,
    }


def _shown(text: str) -> str:
    return printable(text)[:_LONGEST]
