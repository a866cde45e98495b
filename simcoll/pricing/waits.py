"""What layers that gather their parameters add to the compute of a rank, which a replay of equal ranks does not show.

*Stragglers*: ranks compute at speeds that vary from layer to layer. The longest of n like delays with an exponential
tail grows with the logarithm of n, and ranks that gather each layer's parameters wait for it each time. Ranks that meet
once a step have the delays of all layers behind them, which are alike in the mean: for them nothing is added.

*Contention*: kernels are slower while a collective uses the same GPU, so that compute beside one takes longer.

`simcoll.plan` and the replay of a dry run follow these rules, with the same shares.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from simcoll.pricing.collective_prices import JobPrices
from simcoll.pricing.job import Floats, RecordedJob
from simcoll.pricing.rank_program import LAUNCH, WAIT, Program
from simcoll.pricing.roofline import RooflineRates

_GATHER, _SUM = "all_gather", "all_reduce"


def wait_of_slowest(share: float, ranks: int) -> float:
    """The share of its compute that a rank waits for the slowest of so many."""
    return share * math.log(ranks)


def slowed_beside(share: float, compute: float, beside: float) -> float:
    """Seconds that this compute takes, with collectives of so many seconds beside it."""
    return compute * (1 + share * min(1.0, beside / compute))


@dataclass(frozen=True, slots=True, eq=False)
class Slowed:
    """The parts of each column's compute that are none: waits for the slowest rank, and what contention adds."""

    stragglers: Floats
    contention: Floats


def with_waits(job: RecordedJob, prices: JobPrices, rates: RooflineRates | None) -> tuple[RecordedJob, Slowed]:
    """The job with both as part of its compute; as it is, without fitted rates."""
    nothing = np.zeros(len(job.programs))
    if rates is None or not (rates.stragglers or rates.contention):
        return job, Slowed(nothing, nothing)
    programs, stragglers, contention = [], nothing.copy(), nothing.copy()
    for column, program in enumerate(job.programs):
        slower, beside = _Layers(job, program).slower(prices.seconds, rates)
        gap = program.gap * (1 + slower) + beside
        programs.append(replace(program, gap=gap))
        if total := float(gap.sum()):
            stragglers[column] = slower * float(program.gap.sum()) / total
            contention[column] = float(beside.sum()) / total
    return replace(job, programs=tuple(programs)), Slowed(stragglers, contention)


class _Layers:
    """The collectives beside which one rank computes: those that it begins before compute and awaits behind it."""

    def __init__(self, job: RecordedJob, program: Program) -> None:
        self._job, self._gap = job, program.gap
        launched, awaited = np.flatnonzero(program.kind == LAUNCH), np.flatnonzero(program.kind == WAIT)
        _, ours, theirs = np.intersect1d(program.instance[launched], program.instance[awaited], return_indices=True)
        done = np.cumsum(program.gap)
        begins, ends = launched[ours], awaited[theirs]
        between = done[ends] - done[begins]
        self._instance, self._ends = program.instance[begins[between > 0]], ends[between > 0]
        self._between: Floats = between[between > 0]

    def slower(self, seconds: Floats, rates: RooflineRates) -> tuple[float, Floats]:
        """The share of its compute that the rank waits for stragglers, and seconds of contention by operation."""
        beside = np.zeros(len(self._gap))
        shards = max(self._groups(_GATHER), key=len, default=())
        if not shards:
            return 0.0, beside
        # Replicas of a sharded model sum the gradients of each layer beside its compute as well.
        replicas = max((len(ranks) for ranks in self._groups(_SUM) - {shards}), default=1)
        meeting = min(len(shards) * replicas, self._job.world_size)
        each = np.minimum(seconds[self._instance], self._between)
        compute, both = float(self._gap.sum()), float(each.sum())
        added = slowed_beside(rates.contention, compute, both) - compute
        np.add.at(beside, self._ends, each * (added / both if both else 0.0))
        return wait_of_slowest(rates.stragglers, meeting), beside

    def _groups(self, op: str) -> set[tuple[int, ...]]:
        """The groups that run an operation beside several stretches of compute."""
        all_of = self._job.collectives
        number = all_of.ops.index(op) if op in all_of.ops else -1
        chosen = self._instance[all_of.op[self._instance] == number]
        streams, counts = np.unique(all_of.stream[chosen], return_counts=True)
        return {self._job.streams[stream].ranks for stream in streams[counts > 1]}
