"""The steps of a priced job: when each begins, what of it is what, and what a step moves, to the byte."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from simcoll.core.record import Group
from simcoll.pricing.compute import step_of
from simcoll.pricing.job import RecordedJob
from simcoll.pricing.price import Pricing
from simcoll.pricing.rank_program import WAIT
from simcoll.pricing.views.summary import RankTimes, rank_times


@dataclass(frozen=True, slots=True)
class PricedStep:
    """One step of a rank: when it began, how long it took, and what of that was what, in seconds."""

    begin: float
    seconds: float
    communication: float
    exposed: float
    waiting: float
    compute: float


@dataclass(frozen=True, slots=True)
class Volume:
    """The calls of one kind that a rank makes in a step: bytes of all as nccl-tests counts them.

    The group is one of the rank's own, of ``size`` ranks.
    """

    op: str
    group: str
    description: str
    size: int
    calls: int
    bytes: int


@dataclass(frozen=True, slots=True)
class StepCosts:
    """The steps of one rank: its number, calls of a step, volumes of a step by group and op, and each step.

    ``flops`` are those of a step, None where nobody counted them.
    """

    rank: int
    period: int
    volumes: tuple[Volume, ...]
    steps: tuple[PricedStep, ...]
    flops: float | None = None


def steps_of_rank(priced: Pricing) -> StepCosts | None:
    """The steps of the first rank that has some; None where no rank's calls repeat."""
    column = next((column for column, steps in enumerate(priced.job.steps) if steps is not None), None)
    if column is None:
        return None
    steps = priced.job.steps[column]
    assert steps is not None
    times, took = rank_times(priced, column), priced.replayed.end - priced.replayed.begin
    calls = np.flatnonzero(times.kind != WAIT)
    edges = [int(edge) for edge in np.searchsorted(times.place, [*steps.starts, steps.stop])]
    begins = [_begin(priced, times, column, edge) for edge in edges]
    found = []
    for (low, high), (begin, end) in zip(pairwise(edges), pairwise(begins), strict=True):
        part = slice(low, high)
        own = times.instance[part][times.kind[part] != WAIT]
        sums = [float(one[part].sum()) for one in (times.exposed, times.waited, times.compute)]
        found.append(PricedStep(begin, end - begin, float(took[own].sum()), *sums))
    first = times.instance[calls[steps.first : steps.first + steps.period]]
    volumes = tuple(_volumes(priced, first))
    flops = flops_of_step(priced.job, column)
    return StepCosts(priced.job.ranks[column], steps.period, volumes, tuple(found), flops)


def flops_of_step(job: RecordedJob, column: int) -> float | None:
    """FLOPs of one rank in a step, of all that it did where there are no steps; None where nobody counted them."""
    program, steps = job.programs[column], job.steps[column]
    if program.work is None:
        return None
    return program.work.flops(step_of(program, steps) >= 0) / (1 if steps is None else steps.count)


def _begin(priced: Pricing, times: RankTimes, column: int, edge: int) -> float:
    """When the compute before an operation began; of what is behind the last one, the rank's end."""
    if edge >= len(times.arrived):
        return float(priced.replayed.rank_end[column])
    return float(times.arrived[edge] - times.compute[edge])


def _volumes(priced: Pricing, instances: npt.NDArray[np.int32]) -> Iterator[Volume]:
    """Group after group, as they come first; of messages the two ranks of a pair stand for a group."""
    all_of, streams = priced.job.collectives, priced.job.streams
    found: dict[tuple[Group, int], list[int]] = defaultdict(list)
    for number in instances.tolist():
        found[streams[all_of.stream[number]].group, int(all_of.op[number])].append(number)
    for (group, op), mine in found.items():
        size = int(all_of.bytes[mine].sum())
        yield Volume(all_of.ops[op], group.name, group.description, len(group.ranks), len(mine), size)
