"""Looks for cliffs: shapes of jobs that cost `simcoll verify` much more than a job much like them.

Random jobs (how many ranks, calls of each, how they differ, and how many of the ranks do) are read and judged beside
two kinds of other jobs:

* *neighbours* of the same kind, which have half or twice the ranks, or the calls, or the ranks that differ, or the
  groups. Compared is the processor's time a record, above that of a job of two ranks with as many calls as slots of the
  smallest ring, which every verdict takes; what a finding takes counts. A job that costs more than three times as much
  a record as a neighbour is a cliff.
* their *easy case*, a job of as many records in which all agree. To tell what is wrong is more work than to see that
  nothing is, and a record of the easy case takes a fifth of a microsecond. So compared is the time of the whole
  command, its start-up included, which may be twice as long.

It is all measured in one process, one after the other, so that the machine's load touches all alike; a cliff that shows
is measured again before it is told.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.costs import cost
from benchmarks.tables import bench_table
from benchmarks.verify_boxes import GRADED, ODD_SCENARIOS, SCENARIOS, Job, write_job
from simcoll.blackbox.gather import gather
from simcoll.cli.records import judged

CLIFF = 3.0
HARD = 2.0
"""So many times as much as its easy case may a job cost."""

SHAPES = (*SCENARIOS, *ODD_SCENARIOS)
LEAST = Job("correct", 2, 16)
_MOST_PARTNERS = 64


@dataclass(frozen=True, slots=True)
class Pair:
    """A job beside another, and what each of them takes: microseconds a record, or ``whole`` seconds."""

    job: Job
    beside: Job
    cost: float
    beside_cost: float
    whole: bool

    @property
    def ratio(self) -> float:
        """How many times as much the dearer of two neighbours costs, or a job as its easy case."""
        if self.whole:
            return self.cost / self.beside_cost
        return max(self.cost, self.beside_cost) / min(self.cost, self.beside_cost)

    @property
    def is_cliff(self) -> bool:
        """True if it is more than it may be."""
        return self.ratio > (HARD if self.whole else CLIFF)


def shapes(generator: random.Random, count: int, most_ranks: int, most_records: int) -> Iterator[Job]:
    """Random jobs, none so small that what every verdict takes is most of it."""
    for _ in range(count):
        ranks = max(int(most_ranks ** generator.uniform(0.6, 1)), 32)
        records = max(int(most_records ** generator.uniform(0.7, 1)), 256)
        scenario = generator.choice(SHAPES)
        most = _MOST_PARTNERS if scenario == "pairs" else ranks
        yield Job(scenario, ranks, records, int(most ** generator.uniform(0, 1)) if scenario in GRADED else 0)


def neighbours(job: Job) -> list[Job]:
    """Jobs of its kind with half and twice the ranks, the records, and the ranks that differ or the groups of each."""
    ranks = [replace(job, ranks=size) for size in (job.ranks // 2, 2 * job.ranks) if size >= max(4, job.extent)]
    most = _MOST_PARTNERS if job.scenario == "pairs" else job.ranks
    extents = [replace(job, extent=size) for size in (job.extent // 2, 2 * job.extent) if 0 < size <= most]
    return [*ranks, replace(job, records=2 * job.records), *extents]


class Stopwatch:
    """Measures jobs in a folder, each once; ``again`` measures anew and keeps the smaller time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seconds: dict[Job, float] = {}
        self._least = min(self._measured(LEAST) for _ in range(3))
        command = (sys.executable, "-m", "simcoll", "verify", "--plain", str(folder))
        self._command = min(cost(command, 1).cpu_seconds for _ in range(3))

    def microseconds(self, job: Job, *, again: bool = False) -> float:
        """The processor's time a record, of this thread, above what the least job takes."""
        return max(self._taken(job, again=again) - self._least, 1e-4) / (job.ranks * job.records) * 1e6

    def whole(self, job: Job, *, again: bool = False) -> float:
        """The processor's seconds of the command, start-up included."""
        return self._command + self._taken(job, again=again) - self._least

    def _taken(self, job: Job, *, again: bool) -> float:
        if again or job not in self._seconds:
            self._seconds[job] = min(self._seconds.get(job, float("inf")), self._measured(job))
        return self._seconds[job]

    def _measured(self, job: Job) -> float:
        shutil.rmtree(self._folder, ignore_errors=True)
        write_job(job, self._folder)
        begin = time.process_time()
        judged(gather([self._folder], workers=0))
        return time.process_time() - begin


def pairs(watch: Stopwatch, jobs: Iterator[Job]) -> Iterator[Pair]:
    """Each job beside each of its neighbours, and beside its easy case."""
    for job in jobs:
        easy = Job("correct", job.ranks, job.records)
        for other, whole in [*((one, False) for one in neighbours(job)), (easy, True)]:
            measure = watch.whole if whole else watch.microseconds
            found = Pair(job, other, measure(job), measure(other), whole)
            if found.is_cliff:
                found = Pair(job, other, measure(job, again=True), measure(other, again=True), whole)
            yield found


def table(found: list[Pair], most: int = 12) -> Table:
    """The pairs that lie farthest apart."""
    names = ("job", "ranks", "records", "extent", "takes", "unit", "beside", "takes", "ratio")
    made = bench_table("verify: jobs beside others like them", *names, left=("job", "unit", "beside"))
    for one in sorted(found, key=lambda pair: -pair.ratio / (HARD if pair.whole else CLIFF))[:most]:
        job = one.job
        made.add_row(
            *(job.scenario, f"{job.ranks:,}", f"{job.records:,}", f"{job.extent or '-'}"),
            *(f"{one.cost:.2f}", "s" if one.whole else "us/record", _difference(one), f"{one.beside_cost:.2f}"),
            f"[{'red' if one.is_cliff else 'green'}]{one.ratio:.1f}",
        )
    return made


def _difference(pair: Pair) -> str:
    """In what the other job differs."""
    job, beside = pair.job, pair.beside
    if beside.scenario != job.scenario:
        return beside.scenario
    if beside.ranks != job.ranks:
        return f"{beside.ranks:,} ranks"
    return f"{beside.records:,} records" if beside.records != job.records else f"extent {beside.extent}"


def main() -> None:
    """Measure and print; exits 1 where there is a cliff."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=8, help="random jobs (default: 8)")
    parser.add_argument("--ranks", type=int, default=512, help="ranks of the largest job (default: 512)")
    parser.add_argument("--records", type=int, default=2_000, help="calls of each rank, at most (default: 2,000)")
    parser.add_argument("--seed", type=int, help="the seed (default: a new one, which is printed)")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout instead of the table")
    options = parser.parse_args()
    seed = random.randrange(1 << 16) if options.seed is None else options.seed
    with tempfile.TemporaryDirectory(prefix="simcoll-bench-") as folder:
        jobs = shapes(random.Random(seed), options.jobs, options.ranks, options.records)
        found = list(pairs(Stopwatch(Path(folder) / "job"), jobs))
    if options.json:
        rows = [asdict(one) | {"ratio": one.ratio, "cliff": one.is_cliff} for one in found]
        print(json.dumps({"schema": "simcoll.cliffs/2", "seed": seed, "pairs": rows}, indent=2))
    else:
        Console().print(table(found), f"{len(found)} pairs, seed {seed}")
    raise SystemExit(any(one.is_cliff for one in found))


if __name__ == "__main__":
    main()
