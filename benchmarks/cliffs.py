"""Looks for cliffs: shapes of jobs whose records cost `simcoll verify` much more than those of a job much like them.

Random jobs (how many ranks, calls of each, and how they differ) are read and judged beside their neighbours, which have
half and twice the ranks, or the calls, or differ in another way. Compared is the processor's time a record, above that
of a job of two ranks with as many calls as slots of the smallest ring, which every verdict takes. A point that costs
more than three times as much as a neighbour is a cliff. It is all measured in one process, one after the other, so
that the machine's load touches all alike; a cliff that shows is measured again before it is told.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.tables import bench_table
from benchmarks.verify_boxes import ODD_SCENARIOS, SCENARIOS, Job, write_job
from simcoll.blackbox.gather import gather
from simcoll.cli.records import judged

CLIFF = 3.0
SHAPES = (*SCENARIOS, *ODD_SCENARIOS)
LEAST = Job("correct", 2, 16)


@dataclass(frozen=True, slots=True)
class Pair:
    """A job and a neighbour of it, with the microseconds that a record of each takes."""

    job: Job
    neighbour: Job
    cost: float
    beside: float

    @property
    def ratio(self) -> float:
        """How many times as much the dearer one costs."""
        return max(self.cost, self.beside) / min(self.cost, self.beside)


def shapes(generator: random.Random, count: int, most_ranks: int, most_records: int) -> Iterator[Job]:
    """Random jobs, none so small that what every verdict takes is most of it."""
    for _ in range(count):
        ranks = int(most_ranks ** generator.uniform(0.6, 1))
        records = int(most_records ** generator.uniform(0.7, 1))
        yield Job(generator.choice(SHAPES), max(ranks, 32), max(records, 256))


def neighbours(job: Job) -> list[Job]:
    """Jobs with half and twice the ranks and the records, and those that differ in other ways."""
    sizes = [(job.ranks // 2, job.records), (2 * job.ranks, job.records), (job.ranks, 2 * job.records)]
    others = [Job(scenario, job.ranks, job.records) for scenario in SHAPES if scenario != job.scenario]
    return [*(Job(job.scenario, *size) for size in sizes if size[0] >= 4), *others]


class Stopwatch:
    """Measures jobs in a folder, each once; ``again`` measures anew and keeps the smaller time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seconds: dict[Job, float] = {}
        self._least = min(self._measured(LEAST) for _ in range(3))

    def microseconds(self, job: Job, *, again: bool = False) -> float:
        """The processor's time a record, of this thread, above what the least job takes."""
        if again or job not in self._seconds:
            self._seconds[job] = min(self._seconds.get(job, float("inf")), self._measured(job))
        records = job.ranks * job.records
        return max(self._seconds[job] - self._least, 1e-4) / records * 1e6

    def _measured(self, job: Job) -> float:
        shutil.rmtree(self._folder, ignore_errors=True)
        write_job(job, self._folder)
        begin = time.process_time()
        judged(gather([self._folder], workers=0))
        return time.process_time() - begin


def pairs(watch: Stopwatch, jobs: Iterator[Job]) -> Iterator[Pair]:
    """Each job beside each of its neighbours."""
    for job in jobs:
        for other in neighbours(job):
            found = Pair(job, other, watch.microseconds(job), watch.microseconds(other))
            if found.ratio > CLIFF:
                found = Pair(job, other, watch.microseconds(job, again=True), watch.microseconds(other, again=True))
            yield found


def table(found: list[Pair], most: int = 12) -> Table:
    """The pairs that lie farthest apart."""
    names = ("job", "ranks", "records", "us a record", "beside", "ranks", "records", "us a record", "ratio")
    made = bench_table("verify: neighbouring jobs that lie farthest apart", *names, left=("job", "beside"))
    for one in sorted(found, key=lambda pair: -pair.ratio)[:most]:
        cells = [
            (job.scenario, f"{job.ranks:,}", f"{job.records:,}", f"{cost:.2f}")
            for job, cost in ((one.job, one.cost), (one.neighbour, one.beside))
        ]
        colour = "green" if one.ratio <= CLIFF else "red"
        made.add_row(*cells[0], *cells[1], f"[{colour}]{one.ratio:.1f}")
    return made


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
        rows = [asdict(one) | {"ratio": one.ratio} for one in found]
        print(json.dumps({"schema": "simcoll.cliffs/1", "seed": seed, "pairs": rows}, indent=2))
    else:
        Console().print(table(found), f"{len(found)} pairs, seed {seed}")
    raise SystemExit(any(one.ratio > CLIFF for one in found))


if __name__ == "__main__":
    main()
