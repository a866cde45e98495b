"""A running job as Prometheus metrics: the figures of the last look, in few series also for thousands of ranks.

It needs prometheus_client (``pip install 'simcoll[metrics]'``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from simcoll import __version__
from simcoll.blackbox.tail import BoxTail
from simcoll.core.io import printable
from simcoll.live.now import Doing, GroupNow, JobNow, Motion
from simcoll.live.tally import CallTally

METRICS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "simcoll_job_info": (
        "The mode in which the job records, and the version of simcoll that reads.",
        ("mode", "version"),
    ),
    "simcoll_job_state": ("1 for the state that the job is in, 0 for the others.", ("state",)),
    "simcoll_job_still_seconds": ("Time since any record of the job changed.", ()),
    "simcoll_job_step_seconds": ("Median of the ranks' step times, where they are marked or calls repeat.", ()),
    "simcoll_job_steps_total": ("Training steps that every rank has ended, where the program marks them.", ()),
    "simcoll_job_looked_at_timestamp_seconds": ("When the records were read, in seconds since 1970.", ()),
    "simcoll_ranks": ("Ranks by activity; unseen: ranks without a readable record.", ("doing",)),
    "simcoll_collectives_finished_total": (
        "Collectives that all recorded members have finished, summed over the groups of a description.",
        ("group",),
    ),
    "simcoll_calls_total": ("Calls of all ranks; unknown: not read before newer ones took their place.", ("op",)),
    "simcoll_call_bytes_total": (
        "Bytes of these calls: the larger of what a rank sends and receives.",
        ("op",),
    ),
    "simcoll_bus_bandwidth_bytes_per_second": (
        "Median bus bandwidth of the size that takes most time, where devices state times.",
        ("op", "group"),
    ),
    "simcoll_findings": ("Findings of the verifier on the recent records.", ("code", "severity")),
    "simcoll_rank_findings": ("Findings that name this rank as a culprit; of 16 such ranks.", ("rank", "code")),
    "simcoll_records_dropped_total": ("Records whose place in their ring newer ones have taken.", ()),
    "simcoll_records_lost_total": ("Records and entries that could not be written.", ()),
    "simcoll_rank_waiting_ratio": ("Share of its recent time for which a rank waited for others.", ("rank",)),
    "simcoll_rank_late_ratio": ("Share of its recent time for which all others waited for a rank.", ("rank",)),
    "simcoll_rank_awaited_by_ranks": (
        "While the job stands: ranks that wait for this one; of the 16 for which most wait.",
        ("rank",),
    ),
}
"""The help line and the labels of each metric."""

MOST_GROUPS = 16
"""Descriptions of groups that are told apart; more are ``other``."""

MOST_AWAITED = 16
"""Ranks that are named as those for which others wait."""

MOST_BLAMED = 16
"""Ranks that are named as culprits of findings."""

_LONGEST = 64
"""Characters of a label's value."""

_STATE = "simcoll_job_state"
_OTHER = "other"
_UNSEEN = "unseen"


class JobMetrics(Collector):
    """The metrics of one job; :meth:`take` hands over a look, of which every scrape sees the last.

    Before any rank has recorded, the states of the job are 0 and nothing else is there.
    """

    def __init__(self) -> None:
        self._tally = CallTally()
        self._finished: dict[tuple[str, tuple[int, ...]], tuple[str, int]] = {}
        self._families: Mapping[str, Metric] = {_STATE: _family(_STATE, _states(None))}

    def take(self, job: JobNow, tails: Sequence[BoxTail]) -> None:
        """Make the metrics of a look, and of the black boxes as it has left them."""
        if self._tally.add(tails):
            self._finished.clear()
        for view in job.groups:
            self._finish(view)
        self._families = {name: _family(name, values) for name, values in self._values(job, tails).items()}

    def collect(self) -> Iterator[Metric]:
        """What prometheus_client calls at a scrape."""
        yield from self._families.values()

    def registry(self) -> CollectorRegistry:
        """A registry with these metrics alone."""
        registry = CollectorRegistry()
        registry.register(self)
        return registry

    def text(self) -> str:
        """The metrics in Prometheus' text format, as a node exporter's textfile collector reads it."""
        return generate_latest(self.registry()).decode("utf-8")

    def document(self) -> dict[str, list[dict[str, object]]]:
        """The samples of each metric: labels and value."""
        return {
            name: [{"labels": dict(sample.labels), "value": sample.value} for sample in family.samples]
            for name, family in self._families.items()
        }

    def _finish(self, view: GroupNow) -> None:
        """Note a group's progress: its records may be gone from those at hand at the next look."""
        key = view.group.name, view.group.ranks
        _, before = self._finished.get(key, ("", 0))
        self._finished[key] = _shown(view.group.description or view.group.name), max(before, view.finished)

    def _values(self, job: JobNow, tails: Sequence[BoxTail]) -> dict[str, _Values]:
        headers = [tail.header for tail in tails if tail.header is not None]
        dropped = sum(max(tail.newest - tail.header.slot_count, 0) for tail in tails if tail.header is not None)
        step: _Values = {} if job.step_seconds is None else {(): job.step_seconds}
        ended = [one.steps for one in job.ranks if one.steps is not None]
        steps: _Values = {(): min(ended)} if ended else {}
        named = self._named_groups()
        return {
            "simcoll_job_info": {(_shown(job.mode), __version__): 1},
            "simcoll_job_state": _states(job.motion),
            "simcoll_job_still_seconds": {(): job.still_seconds},
            "simcoll_job_step_seconds": step,
            "simcoll_job_steps_total": steps,
            "simcoll_job_looked_at_timestamp_seconds": {(): job.time_ns / 1e9},
            "simcoll_ranks": _ranks(job),
            "simcoll_collectives_finished_total": self._finished_by_group(named),
            "simcoll_calls_total": _by_op(self._tally.calls),
            "simcoll_call_bytes_total": _by_op(self._tally.bytes),
            "simcoll_bus_bandwidth_bytes_per_second": _bandwidths(job, named),
            "simcoll_findings": Counter((finding.code, finding.severity.value) for finding in job.findings),
            "simcoll_rank_findings": _by_culprit(job),
            "simcoll_records_dropped_total": {(): dropped},
            "simcoll_records_lost_total": {(): sum(header.lost for header in headers)},
            "simcoll_rank_waiting_ratio": {
                (str(one.rank),): one.waiting for one in job.ranks if one.waiting is not None
            },
            "simcoll_rank_late_ratio": {(str(one.rank),): one.late for one in job.ranks if one.late is not None},
            "simcoll_rank_awaited_by_ranks": _awaited(job),
        }

    def _named_groups(self) -> frozenset[str]:
        """The descriptions that are told apart: the first ones, because a name must not come and go."""
        return frozenset([*dict.fromkeys(name for name, _ in self._finished.values())][:MOST_GROUPS])

    def _finished_by_group(self, named: frozenset[str]) -> _Values:
        sums: Counter[tuple[str, ...]] = Counter()
        for name, finished in self._finished.values():
            sums[_label(name, named),] += finished
        return sums


_Values = Mapping[tuple[str, ...], float]
"""A metric's values by those of its labels."""


def _family(name: str, values: _Values) -> Metric:
    about, labels = METRICS[name]
    kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
    family = kind(name, about, labels=labels)
    for key, value in values.items():
        family.add_metric(key, value)
    return family


def _states(motion: Motion | None) -> _Values:
    return {(one.value,): one is motion for one in Motion}


def _ranks(job: JobNow) -> _Values:
    counts = Counter(one.doing for one in job.ranks)
    return {**{(doing.value,): counts[doing] for doing in Doing}, (_UNSEEN,): len(job.unseen)}


def _by_op(sums: Mapping[str, int]) -> _Values:
    return {(op,): count for op, count in sorted(sums.items())}


def _bandwidths(job: JobNow, named: frozenset[str]) -> _Values:
    found: dict[tuple[str, ...], float] = {}
    for one in job.bandwidths:  # those that take most time come first
        found.setdefault((one.op, _label(_shown(one.description), named)), one.bus_bandwidth)
    return found


def _awaited(job: JobNow) -> _Values:
    if job.motion is not Motion.STANDING:
        return {}
    counts = Counter(rank for one in job.ranks for rank in one.waits_for)
    return {(str(rank),): count for rank, count in counts.most_common(MOST_AWAITED)}


def _by_culprit(job: JobNow) -> _Values:
    """The findings by culprit, those of the first finding first."""
    culprits = dict.fromkeys(rank for finding in job.findings for rank in finding.culprits)
    named = [*culprits][:MOST_BLAMED]
    found = Counter((rank, finding.code) for finding in job.findings for rank in finding.culprits)
    return {(str(rank), code): count for (rank, code), count in found.items() if rank in named}


def _shown(text: str) -> str:
    """A text of a record as the value of a label: printable, and of bounded length."""
    return printable(text)[:_LONGEST]


def _label(name: str, named: Iterable[str]) -> str:
    return name if name in named else _OTHER
