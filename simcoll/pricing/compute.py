"""The compute between calls in a replay: measured, none, or given in seconds for each step; and slow ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import networkx as nx
import numpy as np
import numpy.typing as npt

from simcoll.core.steps import Steps
from simcoll.errors import PricingError
from simcoll.pricing.job import RecordedJob
from simcoll.pricing.rank_program import WAIT, Program
from simcoll.pricing.roofline import PEAKS, RooflineRates

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Straggler:
    """A rank whose compute takes ``factor`` times as long, and ``seconds`` longer in each step."""

    rank: int
    factor: float = 1.0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Counted:
    """Compute as a dry run counted it, at the speed of the topology's GPU; as it was measured where none was counted.

    The program reaches ``share`` of the ``peak`` (FLOPs/s; None: the GPU's own for each dtype), or what ``reached``
    says of the GPU's family.
    """

    share: float = 0.4
    peak: float | None = None
    reached: Callable[[str], RooflineRates] | None = None

    def on(self, topology: nx.DiGraph[Any]) -> Callable[[Program, Steps | None], Floats]:
        """The compute of a program there; raises PricingError where the GPU is not known."""
        known: dict[int, tuple[object, Floats]] = {}

        def counted(program: Program, steps: Steps | None) -> Floats:
            if program.work is None:
                return program.gap
            if id(program.work) not in known:
                known[id(program.work)] = program.work, self.rates(topology).gaps(program.work)
            return known[id(program.work)][1]

        return counted

    def rates(self, topology: nx.DiGraph[Any]) -> RooflineRates:
        """Returns the rates that the program reaches there; raises PricingError where the GPU is not known."""
        family = str(topology.graph.get("gpu", "")).lower()
        found = PEAKS.get(family)
        if found is not None and self.reached is not None:
            return self.reached(family)
        if self.peak is not None:
            flops: Mapping[str, float] = dict.fromkeys(PEAKS["h100"].flops, self.peak)
        elif found is not None:
            flops = found.flops
        else:
            name = topology.graph.get("name", "the topology")
            raise PricingError(
                f"{name} does not say which GPU it has: give its peak in operations/s with --gpu-peak, such as 989e12, "
                "or what a step computes with --compute SECONDS"
            )
        reached = {dtype: value * self.share for dtype, value in flops.items()}
        return RooflineRates(reached, math.inf if found is None else found.memory)


COUNTED = Counted()
"""At the default share."""


def measured(program: Program, steps: Steps | None) -> Floats:
    """As the record has it."""
    return program.gap


def none(program: Program, steps: Steps | None) -> Floats:
    """Communication alone."""
    return np.zeros(len(program))


def per_step(seconds: float) -> Callable[[Program, Steps | None], Floats]:
    """So many seconds of compute in each step, spread as was measured; evenly over its calls where nothing was.

    The whole record is one step where its calls do not repeat; calls before and after the steps have none.
    """

    def spread(program: Program, steps: Steps | None) -> Floats:
        step = step_of(program, steps)
        inside = step >= 0
        count = int(step.max(initial=-1)) + 1
        total = np.bincount(step[inside], program.gap[inside], minlength=count)
        calls = np.bincount(step[inside], program.kind[inside] != WAIT, minlength=count)
        found = np.zeros(len(program))
        # Denormal totals would overflow what is divided by them.
        timed = inside & (total[step] > 1e-12)
        found[timed] = program.gap[timed] * (seconds / total[step[timed]])
        even = inside & ~timed & (program.kind != WAIT)
        found[even] = seconds / calls[step[even]]
        return found

    return spread


def with_compute(job: RecordedJob, compute: Callable[[Program, Steps | None], Floats]) -> RecordedJob:
    """The job with other compute between its calls."""
    pairs = zip(job.programs, job.steps, strict=True)
    return replace(job, programs=tuple(replace(program, gap=compute(program, steps)) for program, steps in pairs))


def with_stragglers(job: RecordedJob, stragglers: Sequence[Straggler]) -> RecordedJob:
    """The job with ranks that take longer; raises PricingError for a rank that left no record."""
    programs = list(job.programs)
    for straggler in stragglers:
        if straggler.rank not in job.ranks:
            raise PricingError(
                f"straggler {straggler.rank}: no such rank among the {len(job.ranks):,} that left records; "
                f"expected 0 to {job.world_size - 1}"
            )
        column = job.ranks.index(straggler.rank)
        programs[column] = _slowed(programs[column], job.steps[column], straggler)
    return replace(job, programs=tuple(programs))


def _slowed(program: Program, steps: Steps | None, straggler: Straggler) -> Program:
    gap = program.gap * straggler.factor
    starts = np.zeros(1, np.int64) if steps is None else steps.starts
    calls = np.flatnonzero(program.kind != WAIT)
    gap[calls[starts[starts < len(calls)]]] += straggler.seconds
    return replace(program, gap=gap)


def step_of(program: Program, steps: Steps | None) -> npt.NDArray[np.int64]:
    """The step of each operation; -1 before the first and after the last."""
    if steps is None:
        return np.zeros(len(program), np.int64)
    step = (program.place.astype(np.int64) - steps.first) // steps.period
    return np.where((program.place >= steps.first) & (step < steps.count), step, -1)
