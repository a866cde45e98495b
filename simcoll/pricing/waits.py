"""What layers that gather their parameters add to the compute of a rank, which a replay of equal ranks does not show.

*Stragglers*: ranks compute at speeds that vary from layer to layer. The longest of n like delays with an exponential
tail grows with the logarithm of n, and ranks that gather each layer's parameters wait for it each time. Ranks that meet
once a step have the delays of all layers behind them, which are alike in the mean: for them nothing is added.

*Contention*: kernels are slower while a collective uses the same GPU, so that compute beside one takes longer.

Which group holds the shards of the parameters follows from the order of its calls. A forward pass gathers the layers
one after the other, and only the backward pass scatters their gradients; a sequence-parallel layer scatters behind its
gathers in both. Replicas of the shards sum a layer's gradients directly behind their reduce_scatter.

`simcoll.plan` and the replay of a dry run follow these rules, with the same shares.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np

from simcoll.pricing.collective_prices import JobPrices
from simcoll.pricing.job import Floats, RecordedJob
from simcoll.pricing.rank_program import LAUNCH, WAIT, Program
from simcoll.pricing.roofline import RooflineRates

_GATHER, _SCATTER, _SUM = "all_gather", "reduce_scatter", "all_reduce"

_Ranks = tuple[int, ...]


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
        slower, beside = _Layers(job, column).slower(prices.seconds, rates)
        gap = program.gap * (1 + slower) + beside
        programs.append(replace(program, gap=gap))
        if total := float(gap.sum()):
            stragglers[column] = slower * float(program.gap.sum()) / total
            contention[column] = float(beside.sum()) / total
    return replace(job, programs=tuple(programs)), Slowed(stragglers, contention)


class _Layers:
    """The collectives beside which one rank computes: those that it begins before compute and awaits behind it."""

    def __init__(self, job: RecordedJob, column: int) -> None:
        program: Program = job.programs[column]
        self._job, self._rank, self._gap = job, job.ranks[column], program.gap
        self._made = program.instance[program.kind != WAIT]
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
        shards = max(filter(self._holds_shards, self._groups(_GATHER)), key=len, default=())
        if not shards:
            return 0.0, beside
        replicas = max((len(ranks) for ranks in self._groups(_SUM) if self._sums_shards(ranks, shards)), default=1)
        meeting = min(len(shards) * replicas, self._job.world_size)
        each = np.minimum(seconds[self._instance], self._between)
        compute, both = float(self._gap.sum()), float(each.sum())
        added = slowed_beside(rates.contention, compute, both) - compute
        np.add.at(beside, self._ends, each * (added / both if both else 0.0))
        return wait_of_slowest(rates.stragglers, meeting), beside

    def _groups(self, op: str) -> set[_Ranks]:
        """The groups that run an operation beside several stretches of compute."""
        all_of = self._job.collectives
        number = all_of.ops.index(op) if op in all_of.ops else -1
        chosen = self._instance[all_of.op[self._instance] == number]
        streams, counts = np.unique(all_of.stream[chosen], return_counts=True)
        return {self._job.streams[stream].ranks for stream in streams[counts > 1]}

    def _holds_shards(self, ranks: _Ranks) -> bool:
        """True if a group scatters, and between two forward passes not more often than a pass gathers.

        Forward passes are its long runs of gathers: backward passes of sequence-parallel layers have short ones too.
        """
        ops = [op for op, group in self._calls() if group == ranks and op in (_GATHER, _SCATTER)]
        runs = [(op, len(list(run))) for op, run in groupby(ops)]
        longest = max((count for op, count in runs if op == _GATHER), default=0)
        scattered, most = 0, 0
        for op, count in runs:
            if op == _SCATTER:
                scattered += count
                most = max(most, scattered)
            elif 2 * count > longest:
                scattered = 0
        return longest > 1 and 0 < most <= longest

    def _sums_shards(self, ranks: _Ranks, shards: _Ranks) -> bool:
        """True if a group meets the shards in this rank alone, and all that it sums was just scattered among them."""
        if {*ranks} & {*shards} != {self._rank}:
            return False
        calls = self._calls()
        before = [calls[place - 1] for place, call in enumerate(calls) if place and call == (_SUM, ranks)]
        return all(call == (_SCATTER, shards) for call in before)

    def _calls(self) -> list[tuple[str, _Ranks]]:
        """The operation and the group of all that the rank begins, in order."""
        all_of, streams = self._job.collectives, self._job.streams
        pairs = zip(all_of.op[self._made].tolist(), all_of.stream[self._made].tolist(), strict=True)
        return [(all_of.ops[op], streams[stream].ranks) for op, stream in pairs]
