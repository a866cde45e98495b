"""A priced job in rows: totals over the ranks, kinds of calls, groups, links, steps; what the reports show."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from simcoll.core.estimate import Estimate
from simcoll.core.record import Group
from simcoll.pricing.compute import step_of
from simcoll.pricing.job import Floats, RecordedJob, Stream
from simcoll.pricing.price import Pricing
from simcoll.pricing.rank_program import LAUNCH, WAIT
from simcoll.pricing.replayed import held_up
from simcoll.verifier.findings.describe import group_name

_SPARSE = 4
"""So many times as many numbers as collectives may there be for a table of them all."""


@dataclass(frozen=True, slots=True)
class MeanAndRange:
    """Seconds of all ranks: their mean, the least and the most, and the ranks that have these."""

    mean: float
    least: float
    most: float
    least_rank: int
    most_rank: int


@dataclass(frozen=True, slots=True)
class Totals:
    """Seconds per rank by use.

    ``communication`` is the time of all collectives that a rank takes part in, ``exposed`` the part of it in which the
    rank was held up, ``overlapped`` the rest; ``waiting`` is for ranks that come later. ``stragglers`` is for the
    slowest one where the replay's ranks are equally fast, ``contention`` what compute takes longer beside collectives
    (`simcoll.pricing.waits`).
    """

    communication: MeanAndRange
    exposed: MeanAndRange
    overlapped: MeanAndRange
    waiting: MeanAndRange
    compute: MeanAndRange
    stragglers: MeanAndRange
    contention: MeanAndRange


@dataclass(frozen=True, slots=True)
class GroupKind:
    """Calls that cost the same in groups that are alike: one estimate for all, how many, seconds of all together.

    ``groups`` of ``size`` ranks are called ``group``. ``exposed`` and ``waiting`` are means over the ranks that made
    these calls.
    """

    estimate: Estimate
    group: str
    groups: int
    size: int
    calls: int
    seconds: float
    exposed: float
    waiting: float


@dataclass(frozen=True, slots=True)
class GroupCost:
    """One process group: its collectives and messages, bytes, seconds; the last two as means over its ranks."""

    name: str
    description: str
    ranks: tuple[int, ...]
    collectives: int
    messages: int
    bytes: int
    seconds: float
    exposed: float
    waiting: float


@dataclass(frozen=True, slots=True)
class LinkCost:
    """A link that held collectives up: seconds in which it was busy, and how many collectives name it."""

    source: Hashable
    target: Hashable
    link: str
    bandwidth: float
    busy: float
    calls: int


@dataclass(frozen=True, slots=True, eq=False)
class RankTimes:
    """One rank's operations in the replay, a column each: when it came, seconds waited, exposed, computed before."""

    kind: npt.NDArray[np.uint8]
    instance: npt.NDArray[np.int32]
    place: npt.NDArray[np.int32]
    arrived: Floats
    waited: Floats
    exposed: Floats
    compute: Floats


def rank_times(priced: Pricing, column: int) -> RankTimes:
    """Returns the times that one rank's operations took."""
    program, done = priced.job.programs[column], priced.replayed
    arrived = done.arrived[column]
    waited, exposed = held_up(program, arrived, done.last, done.end, done.let_go[column])
    return RankTimes(program.kind, program.instance, program.place, arrived, waited, exposed, program.gap)


def totals_of(priced: Pricing) -> Totals:
    """Over all ranks that left records."""
    done, ranks = priced.replayed, priced.job.ranks
    took = done.end - done.begin
    # Ranks with the same operations often share their arrays.
    known = {(id(one.kind), id(one.instance)): one for one in priced.job.programs}
    sums = {key: took[one.instance[one.kind != WAIT]].sum() for key, one in known.items()}
    communication = np.array([sums[id(one.kind), id(one.instance)] for one in priced.job.programs], np.float64)
    overlapped = np.maximum(communication - done.rank_exposed, 0.0)
    columns = communication, done.rank_exposed, overlapped, done.rank_waited, *compute_of(priced)
    return Totals(*(_mean_and_range(column, ranks) for column in columns))


def compute_of(priced: Pricing) -> tuple[Floats, Floats, Floats]:
    """Of each rank the seconds of compute, of waits for stragglers, and of contention."""
    whole, slowed = priced.replayed.rank_compute, priced.slowed
    return whole * (1 - slowed.stragglers - slowed.contention), whole * slowed.stragglers, whole * slowed.contention


def _mean_and_range(seconds: Floats, ranks: tuple[int, ...]) -> MeanAndRange:
    if not len(seconds):
        return MeanAndRange(0.0, 0.0, 0.0, 0, 0)
    low, high = int(seconds.argmin()), int(seconds.argmax())
    return MeanAndRange(float(seconds.mean()), float(seconds[low]), float(seconds[high]), ranks[low], ranks[high])


def kinds_of(priced: Pricing) -> list[GroupKind]:
    """Kinds of calls, those that take the most seconds of all ranks together first."""
    sums = _sums(priced)
    found: dict[object, list[tuple[Estimate, Stream, _Sums]]] = defaultdict(list)
    for one in sums:
        estimate, stream = priced.prices.estimates[one.estimate], priced.job.streams[one.stream]
        label = group_name(stream.group)
        key = (
            estimate.op,
            estimate.bytes,
            estimate.seconds,
            estimate.algorithm,
            label if stream.group.description else "",
            len(stream.group.ranks),
        )
        found[key].append((estimate, stream, one))
    kinds = [_kind(rows) for rows in found.values()]
    return sorted(kinds, key=lambda kind: -kind.seconds * kind.size)


def _kind(rows: list[tuple[Estimate, Stream, _Sums]]) -> GroupKind:
    estimate, stream, _ = rows[0]
    groups = len({(one.group.name, one.group.ranks) for _, one, _ in rows})
    members = max(len({int(rank) for _, one, _ in rows for rank in one.members}), 1)
    return GroupKind(
        estimate,
        group_name(stream.group),
        groups,
        len(stream.ranks),
        sum(each.calls for _, _, each in rows),
        sum(each.seconds for _, _, each in rows),
        sum(each.exposed for _, _, each in rows) / members,
        sum(each.waited for _, _, each in rows) / members,
    )


@dataclass(frozen=True, slots=True)
class _Sums:
    """The totals of the collectives of one stream and one estimate, all ranks together."""

    stream: int
    estimate: int
    calls: int
    bytes: int
    seconds: float
    exposed: float
    waited: float


def _sums(priced: Pricing) -> list[_Sums]:
    all_of, done, prices = priced.job.collectives, priced.replayed, priced.prices
    width = max(len(prices.estimates), 1)
    ran = all_of.came > 0
    part = slice(None) if ran.all() else ran
    key = all_of.stream[part].astype(np.int64) * width + prices.which[part]
    size = len(priced.job.streams) * width
    if size > _SPARSE * len(key):
        keys, key = np.unique(key, return_inverse=True)
        size = len(keys)
        used = np.arange(size)
    else:
        # Small numbers are told apart by a table of them all, without sorting.
        keys = used = np.flatnonzero(np.bincount(key, minlength=size))
    columns = (
        None,
        all_of.bytes[part],
        (done.end - done.begin)[part],
        done.exposed[part],
        done.waited[part],
    )
    added = [np.bincount(key, weights=column, minlength=size)[used] for column in columns]
    return [
        _Sums(int(key) // width, int(key) % width, int(calls), int(size), float(took), float(shown), float(waited))
        for key, calls, size, took, shown, waited in zip(keys, *added, strict=True)
    ]


def groups_of(priced: Pricing) -> list[GroupCost]:
    """Every process group, those that take the most seconds first."""
    found: dict[object, list[_Sums]] = defaultdict(list)
    for one in _sums(priced):
        group = priced.job.streams[one.stream].group
        found[group.name, group.ranks].append(one)
    return sorted((_group(priced, rows) for rows in found.values()), key=lambda one: -one.seconds)


def _group(priced: Pricing, rows: list[_Sums]) -> GroupCost:
    streams = [priced.job.streams[one.stream] for one in rows]
    group = streams[0].group
    members = max(len({int(rank) for stream in streams for rank in stream.members}), 1)
    messages = sum(one.calls for one, stream in zip(rows, streams, strict=True) if stream.message)
    return GroupCost(
        group.name,
        group.description,
        tuple(group.ranks),
        sum(one.calls for one in rows) - messages,
        messages,
        sum(one.bytes for one in rows),
        sum(one.seconds for one in rows),
        sum(one.exposed for one in rows) / members,
        sum(one.waited for one in rows) / members,
    )


def links_of(priced: Pricing) -> list[LinkCost]:
    """The links that hold collectives up, those that are busy for longest first."""
    ran = priced.job.collectives.came > 0
    counts = np.bincount(priced.prices.which[ran], minlength=len(priced.prices.estimates))
    found: dict[tuple[Hashable, Hashable, str], tuple[float, float, int]] = {}
    for estimate, count in zip(priced.prices.estimates, counts, strict=True):
        link = estimate.bottleneck
        if link is not None and count:
            key = link.source, link.target, link.link
            _, busy, calls = found.get(key, (0.0, 0.0, 0))
            found[key] = link.bandwidth, busy + estimate.seconds * link.utilisation * int(count), calls + int(count)
    costs = [LinkCost(*key, *value) for key, value in found.items()]
    return sorted(costs, key=lambda cost: (-cost.busy, str(cost.source), str(cost.target)))


def overlapping_calls(priced: Pricing) -> int:
    """Calls of all ranks that go on before they have ended."""
    return sum(int((program.kind == LAUNCH).sum()) for program in priced.job.programs)


@dataclass(frozen=True, slots=True)
class PricedStep:
    """One step of a rank: when it began, how long it took, and what of that was what, in seconds."""

    begin: float
    seconds: float
    communication: float
    exposed: float
    waiting: float
    compute: float
    stragglers: float
    contention: float


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

    ``flops`` are those of a step, None where none were counted.
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
        exposed, waited, busy = (float(one[part].sum()) for one in (times.exposed, times.waited, times.compute))
        waits, contention = (
            busy * float(share[column]) for share in (priced.slowed.stragglers, priced.slowed.contention)
        )
        parts = exposed, waited, busy - waits - contention, waits, contention
        found.append(PricedStep(begin, end - begin, float(took[own].sum()), *parts))
    first = times.instance[calls[steps.first : steps.first + steps.period]]
    volumes = tuple(_volumes(priced, first))
    flops = flops_of_step(priced.job, column)
    return StepCosts(priced.job.ranks[column], steps.period, volumes, tuple(found), flops)


def flops_of_step(job: RecordedJob, column: int) -> float | None:
    """Returns a rank's FLOPs in a step, or in its whole run where there are no steps; None where none were counted."""
    program, steps = job.programs[column], job.steps[column]
    if program.work is None:
        return None
    return program.work.flops(step_of(program, steps) >= 0) / (1 if steps is None else steps.count)


def _begin(priced: Pricing, times: RankTimes, column: int, edge: int) -> float:
    """The begin of the compute before an operation; behind the last one, the rank's end."""
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
