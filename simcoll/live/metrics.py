"""A running job as Prometheus metrics: a collector that looks at the black boxes when it is scraped.

Few series, whatever the job's size: each rank has its own in a job of up to 512 ranks; in a larger job those ranks have
them for which others wait most. Groups are taken together by their description. Needs ``prometheus_client``.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from simcoll.blackbox.tail import BoxTail
from simcoll.live.now import Doing, JobNow, Motion, RankNow
from simcoll.live.watch import JobWatch
from simcoll.spec.call import Call, bytes_of
from simcoll.verifier.findings.describe import group_name

MOST_RANKS = 512
"""Ranks that have series of their own, if the job has no more."""

LATEST_RANKS = 64
"""The ranks of a larger job that have them: those for which others wait most."""

_MOST_GROUPS = 32
_MOST_SPEEDS = 32
_MOST_LABEL = 80
_QUANTILES = (0.0, 0.5, 0.9, 1.0)


class JobCollector(Collector):
    """The metrics of one job; each scrape is a look. No metric is there while no rank has left a record."""

    def __init__(self, watch: JobWatch) -> None:
        self._watch = watch
        self._work = WorkByOp()
        self._lock = threading.Lock()

    def describe(self) -> Iterable[Metric]:
        """None: a registry is not to look at the job when it takes the collector."""
        return []

    def collect(self) -> Iterator[Metric]:
        """The metrics as of now."""
        with self._lock:
            job = self._watch.look()
            if job is None:
                return
            self._work.add(self._watch.tails)
            yield from _of_job(job)
            yield from _of_groups(job)
            yield from _of_ranks(job)
            yield from _of_work(self._work)
            yield from _of_losses(self._watch.tails)


class WorkByOp:
    """Calls and bytes of all ranks by operation, counted from look to look.

    Records that came and went between two looks count in the proportions of those at hand. Bytes are the larger of a
    call's sent and received ones, as in nccl-tests.
    """

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()
        self._seen: dict[tuple[str, int], int] = {}

    def add(self, tails: Sequence[BoxTail]) -> None:
        """Count what is new in these files."""
        for tail in tails:
            if tail.header is None:
                continue
            key = str(tail.path), tail.header.wall_ns
            before = self._seen.get(key, 0)
            self._seen[key] = tail.newest
            made = tail.newest - before
            fresh = tail.slots["signature"][tail.slots["index"] > before]
            if made <= 0 or not len(fresh):
                continue
            kinds, counts = np.unique(fresh, return_counts=True)
            share = made / len(fresh)
            for kind, count in zip(kinds.tolist(), counts.tolist(), strict=True):
                call = tail.entries.signatures.get(kind)
                if call is not None:
                    self.calls[call.op] += round(count * share)
                    self.bytes[call.op] += round(count * share) * _size(call)


def _size(call: Call) -> int:
    return max(bytes_of(call.inputs) or 0, bytes_of(call.outputs) or 0)


def _gauge(name: str, text: str, value: float | None) -> Iterator[Metric]:
    if value is not None:
        yield GaugeMetricFamily(f"simcoll_{name}", text, value=value)


def _family(name: str, text: str, labels: Sequence[str], rows: Iterable[tuple[Sequence[str], float]]) -> Metric:
    family = GaugeMetricFamily(f"simcoll_{name}", text, labels=labels)
    for values, value in rows:
        family.add_metric([one[:_MOST_LABEL] for one in values], value)
    return family


def _of_job(job: JobNow) -> Iterator[Metric]:
    states = [((motion.value,), float(job.motion is motion)) for motion in Motion]
    yield _family("job_state", "1 for the state that the job is in: moving, standing, ended.", ["state"], states)
    yield from _gauge("job_still_seconds", "Time since any record of the job changed.", job.still_seconds)
    yield from _gauge("job_proved_stuck", "1 if the job can never go on.", float(job.proved))
    yield from _gauge("ranks_expected", "Ranks of the job.", job.world_size)
    doing = Counter(one.doing for one in job.ranks)
    rows = [((one.value,), float(doing[one])) for one in Doing]
    yield _family("ranks", "Recorded ranks by what they do.", ["doing"], rows)
    yield from _gauge("step_seconds", "Median time of a rank's last training steps.", job.step_seconds)
    steps = [one.steps for one in job.ranks if one.steps is not None]
    if steps:
        yield CounterMetricFamily("simcoll_steps", "Training steps that every rank has ended.", value=min(steps))
    found = Counter((one.code, one.severity.value) for one in job.findings)
    yield _family(
        "findings",
        "Findings on the records at hand, by code.",
        ["code", "severity"],
        [(key, float(count)) for key, count in sorted(found.items())],
    )


def _of_groups(job: JobNow) -> Iterator[Metric]:
    """Groups of one description together: the one that has come least far."""
    least: dict[str, int] = {}
    waited: dict[str, float] = {}
    sizes: Counter[str] = Counter()
    for view in job.groups:
        name = group_name(view.group)
        least[name] = min(least.get(name, view.finished), view.finished)
        stuck = view.for_seconds if view.came and view.absent else 0.0
        waited[name] = max(waited.get(name, 0.0), stuck)
        sizes[name] = max(sizes[name], len(view.group.ranks))
    names = [name for name, _ in sizes.most_common(_MOST_GROUPS)]
    yield _family(
        "group_finished_sequence",
        "Number of the last collective that all recorded members finished, of the group that came least far.",
        ["group"],
        [((name,), float(least[name])) for name in names],
    )
    yield _family(
        "group_waiting_seconds",
        "Time since the first rank came to a collective to which another has not come; 0 if there is none.",
        ["group"],
        [((name,), waited[name]) for name in names],
    )
    rows = [
        ((one.op, str(one.bytes), one.description or "", str(one.size)), one.bus_bandwidth)
        for one in list(job.bandwidths)[:_MOST_SPEEDS]
    ]
    yield _family(
        "bus_bandwidth_bytes_per_second",
        "Median bus bandwidth (as in nccl-tests) of collectives whose device states their times.",
        ["op", "bytes", "group", "size"],
        rows,
    )


def _of_ranks(job: JobNow) -> Iterator[Metric]:
    shown = _shown(job.ranks)
    for name, text, values in (
        (
            "waiting_ratio",
            "Share of its recent time in which a rank waited for others.",
            {one.rank: one.waiting for one in job.ranks},
        ),
        (
            "late_ratio",
            "Share of its recent time in which all others waited for a rank.",
            {one.rank: one.late for one in job.ranks},
        ),
    ):
        known = {rank: value for rank, value in values.items() if value is not None}
        rows = [((str(one.rank),), known[one.rank]) for one in shown if one.rank in known]
        yield _family(f"rank_{name}", text, ["rank"], rows)
        yield _family(f"ranks_{name}", f"{text[:-1]}, over all ranks.", ["quantile"], _quantiles(known))


def _shown(ranks: Sequence[RankNow]) -> Sequence[RankNow]:
    if len(ranks) <= MOST_RANKS:
        return ranks
    return sorted(ranks, key=lambda one: (-(one.late or 0.0), one.rank))[:LATEST_RANKS]


def _quantiles(values: Mapping[int, float]) -> list[tuple[Sequence[str], float]]:
    if not values:
        return []
    found = np.quantile(np.fromiter(values.values(), float), _QUANTILES)
    return [((f"{at:g}",), float(value)) for at, value in zip(_QUANTILES, found, strict=True)]


def _of_work(work: WorkByOp) -> Iterator[Metric]:
    calls = CounterMetricFamily("simcoll_calls", "Calls of all ranks, by operation.", labels=["op"])
    size = CounterMetricFamily("simcoll_bytes", "Bytes of the calls of all ranks, by operation.", labels=["op"])
    for op in sorted(work.calls):
        calls.add_metric([op], work.calls[op])
        size.add_metric([op], work.bytes[op])
    yield calls
    yield size


def _of_losses(tails: Sequence[BoxTail]) -> Iterator[Metric]:
    headers = [(tail.newest, tail.header) for tail in tails if tail.header is not None]
    dropped = sum(max(newest - header.slot_count, 0) for newest, header in headers)
    lost = sum(header.lost for _, header in headers)
    yield CounterMetricFamily("simcoll_overwritten_records", "Records that newer ones have overwritten.", value=dropped)
    yield CounterMetricFamily("simcoll_lost_entries", "Entries of black boxes that found no room.", value=lost)
