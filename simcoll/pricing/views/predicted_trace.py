"""A priced job as a timeline: each rank a process, its program and its streams threads."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import numpy as np
import numpy.typing as npt

from simcoll.pricing.job import Stream
from simcoll.pricing.price import Pricing
from simcoll.pricing.rank_program import WAIT
from simcoll.pricing.views.slice_plan import FlowEnds, SlicePlan, flow_ends, plan_slices
from simcoll.pricing.views.summary import rank_times
from simcoll.reports.trace_event import LIMIT, Slice, TraceEvents
from simcoll.verifier.findings.describe import group_name

_MOMENT = 2e-9
_EACH = 3
"""Slices of a call: the compute before it, the wait for it, the call itself."""


def predicted(priced: Pricing, limit: int = LIMIT) -> TraceEvents:
    """The timeline of a priced job, of as many ranks as fit into ``limit`` slices."""
    job, done = priced.job, priced.replayed
    slowest = int(done.rank_end.argmax()) if len(job.ranks) else 0
    plan = plan_slices(job.ranks, [len(program) for program in job.programs], _EACH, slowest, limit)
    slices = _Predicted(priced, plan)
    return TraceEvents(
        {job.ranks[column]: f"rank {job.ranks[column]}" for column in plan.columns},
        slices.threads(),
        slices.all(),
        note=plan.note,
        about={"simcoll": "predicted", "topology": priced.topology},
    )


class _Predicted:
    def __init__(self, priced: Pricing, plan: SlicePlan) -> None:
        self._priced, self._plan = priced, plan
        parts = []
        for column in plan.columns:
            own = self._calls(column)
            # An arrow begins and ends at what takes time: a nanosecond at least, as the file counts.
            own = own[(priced.replayed.end - priced.replayed.begin)[own] >= _MOMENT]
            parts.append((column, own, priced.replayed.begin[own]))
        self._ends: FlowEnds = flow_ends(len(priced.job.collectives), parts)

    def _calls(self, column: int) -> npt.NDArray[np.int32]:
        program = self._priced.job.programs[column]
        kind, instance = program.kind[: self._plan.operations], program.instance[: self._plan.operations]
        own: npt.NDArray[np.int32] = instance[kind != WAIT]
        return own

    def threads(self) -> dict[tuple[int, int], str]:
        """Thread 0 is the program; each stream that a rank uses has the thread after its number."""
        job, found = self._priced.job, {}
        for column in self._plan.columns:
            rank = job.ranks[column]
            found[rank, 0] = "program"
            for stream in np.unique(job.collectives.stream[self._calls(column)]).tolist():
                found[rank, stream + 1] = _stream_name(job.streams[stream])
        return found

    def all(self) -> Iterator[Slice]:
        """Rank after rank; each thread's slices in order of time."""
        for column in self._plan.columns:
            yield from self._program(column)
            yield from self._collectives(column)

    def _program(self, column: int) -> Iterator[Slice]:
        job, times = self._priced.job, rank_times(self._priced, column)
        calls, rank, free = job.collectives, job.ranks[column], 0
        rows = zip(
            times.kind.tolist(),
            times.instance.tolist(),
            *((1e9 * one).tolist() for one in (times.arrived, times.compute, times.waited, times.exposed)),
            strict=True,
        )
        for kind, number, arrived, compute, waited, exposed in islice(rows, self._plan.operations):
            come, end = max(int(arrived), free), int(arrived + waited + exposed)
            if compute >= 1:
                yield Slice(rank, 0, "compute", max(int(arrived - compute), free), come, {})
            if end > come:
                op = calls.ops[calls.op[number]]
                name = f"wait for {op}" if kind == WAIT else op
                args = {
                    "group": job.streams[int(calls.stream[number])].group.name,
                    "sequence": int(calls.sequence[number]),
                    "waiting_us": waited / 1e3,
                    "exposed_us": exposed / 1e3,
                }
                yield Slice(rank, 0, name, come, end, args)
            free = max(come, end)

    def _collectives(self, column: int) -> Iterator[Slice]:
        job, done, prices = self._priced.job, self._priced.replayed, self._priced.prices
        all_of, rank = job.collectives, job.ranks[column]
        own = self._calls(column)
        order = own[np.argsort(done.begin[own], kind="stable")]
        free: dict[int, int] = {}
        for number in order.tolist():
            stream, found = int(all_of.stream[number]), prices.estimates[prices.which[number]]
            begin = max(int(done.begin[number] * 1e9), free.get(stream, 0))
            end = free[stream] = max(int(done.end[number] * 1e9), begin)
            args = {
                "group": job.streams[stream].group.name,
                "sequence": int(all_of.sequence[number]),
                "bytes": found.bytes,
                "algorithm": found.algorithm,
                "protocol": found.protocol,
                "ranks": len(job.streams[stream].ranks),
            }
            phase = self._ends.phase(number, column)
            yield Slice(rank, stream + 1, found.op, begin, end, args, number + 1 if phase else 0, phase)


def _stream_name(stream: Stream) -> str:
    name = f"{stream.group.name} {group_name(stream.group)}"
    return f"{name}: rank {stream.ranks[0]} to {stream.ranks[1]}" if stream.message else name
