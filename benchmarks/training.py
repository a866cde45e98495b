"""What a training step costs: plain, in simcoll's modes, and under TORCH_DISTRIBUTED_DEBUG=DETAIL, in turn in one run.

A transformer of 56 million parameters on two CPU ranks over Gloo, with DistributedDataParallel and with FSDP2, on a
tiny batch, so that communication is most of a step. One job of each variant is started, and they take turns, another
first in each round. A ratio is that of the times of two turns of one round: the median over the rounds, and the
quartiles; of wall time, and of CPU time of all threads of both ranks, which a busy machine changes less. ``again`` is a
second plain job, which shows how much of a ratio is noise. The goals: a step under record and
check takes at most 3 % longer than plain, under detail 5 %. A round takes half a minute: ``--wrappers`` chooses one
model, and ``--seconds`` ends it with the rounds that it has. Measure on a machine that does nothing else. Nothing here
is a test.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.overhead import VARIANTS, free_port, machine, start
from benchmarks.tables import bench_table

RANK_PROGRAM = Path(__file__).with_name("training_rank.py")
WRAPPERS = ("ddp", "fsdp2")
SWITCHES: dict[str, dict[str, str]] = {
    "plain": {},
    "again": {},
    **{name: VARIANTS[name] for name in ("record", "check", "detail", "DETAIL")},
}
COMPARED = tuple(SWITCHES)[1:]
SKIPPED = {
    ("ddp", "DETAIL"): "DETAIL ends a DistributedDataParallel program with a segmentation fault (torch 2.13, 2.15)"
}
GOALS = {"record": 1.03, "check": 1.03, "detail": 1.05}
TOKENS = 16
KEPT_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(64 << 30)}
"""Ranks keep the memory that they freed. Pages that the kernel clears anew in each step make steps unlike."""
Turn = Mapping[str, float]


class Job:
    """The ranks of one variant, which make steps when they are told to."""

    def __init__(self, switches: dict[str, str], wrapper: str, tokens: int, ranks: int, folder: str) -> None:
        """``switches`` are the environment's; ``tokens`` those of a rank's batch."""
        program, port = [str(RANK_PROGRAM), wrapper, str(tokens)], free_port()
        self._processes = [
            start(program, KEPT_MEMORY | switches, rank, ranks, port, folder, subprocess.PIPE, None)
            for rank in range(ranks)
        ]

    def turn(self, steps: int) -> Turn:
        """What so many steps take: seconds of the slowest rank, CPU seconds of all, peak bytes of rank 0."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(f"{steps}\n")
            process.stdin.flush()
        answers = []
        for process in self._processes:
            assert process.stdout is not None
            answers.append(json.loads(process.stdout.readline()))
        return {
            "wall": max(one["wall"] for one in answers),
            "cpu": sum(one["cpu"] for one in answers),
            "memory": answers[0]["memory"],
        }

    def end(self) -> None:
        """End the ranks."""
        for process in self._processes:
            process.kill()
            process.communicate()


@dataclass(frozen=True, slots=True)
class Row:
    """One wrapper and measure (``wall`` or ``cpu``): the seconds of a step by variant, one number a round."""

    wrapper: str
    measure: str
    seconds: dict[str, list[float]]

    def ratios(self, variant: str) -> tuple[float, float, float]:
        """The quartiles of the ratios of a variant's turns to the plain ones of the same rounds."""
        turns = zip(self.seconds[variant], self.seconds["plain"], strict=True)
        found = [one / plain for one, plain in turns]
        low, middle, high = statistics.quantiles(found, n=4) if len(found) > 1 else found * 3
        return low, middle, high


def measure(wrapper: str, options: argparse.Namespace) -> list[Row]:
    """The rows of a wrapper; the variants take turns, and another one begins each round."""
    variants = [name for name in ("plain", *options.variants) if (wrapper, name) not in SKIPPED]
    turns: dict[str, list[Turn]] = defaultdict(list)
    progress, began = Console(stderr=True), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="simcoll-bench-") as folder:
        jobs = {name: Job(SWITCHES[name], wrapper, TOKENS, options.ranks, folder) for name in variants}
        try:
            for job in jobs.values():
                job.turn(options.warm_up)
            while len(turns["plain"]) < options.rounds and time.monotonic() - began < options.seconds:
                place = len(turns["plain"]) % len(variants)
                for name in variants[place:] + variants[:place]:
                    turns[name].append(jobs[name].turn(options.steps))
                rounds, took = len(turns["plain"]), time.monotonic() - began
                progress.print(f"{wrapper}: {rounds} rounds, {took:.0f} s", style="dim")
        finally:
            for job in jobs.values():
                job.end()
    return [
        Row(wrapper, kind, {name: [round(one[kind] / options.steps, 5) for one in turns[name]] for name in variants})
        for kind in ("wall", "cpu")
    ]


def table(rows: list[Row]) -> Table:
    """Milliseconds of a plain step, and the ratios of each variant: the median, and below it the quartiles."""
    title = "one training step over Gloo: plain, and the ratio of each variant to it (median, quartiles)"
    drawn = bench_table(title, "model", "time", "plain", *COMPARED, left=("model", "time"))
    for row in rows:
        shares = [share(row, variant) for variant in COMPARED]
        plain = row.seconds["plain"]
        drawn.add_row(row.wrapper, row.measure, f"{statistics.median(plain) * 1e3:,.0f} ms", *shares)
    return drawn


def share(row: Row, variant: str) -> str:
    """The ratio of a variant, coloured where there is a goal; a dash where it did not run."""
    if variant not in row.seconds:
        return "-"
    low, middle, high = row.ratios(variant)
    spread = f"\n{low:.3f}-{high:.3f}"
    if variant not in GOALS:
        return f"{middle:.3f}{spread}"
    return f"[{'green' if middle <= GOALS[variant] else 'red'}]{middle:.3f}[/]{spread}"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wrappers", choices=WRAPPERS, nargs="+", default=WRAPPERS, help="default: both")
    parser.add_argument("--variants", choices=COMPARED, nargs="+", default=COMPARED, help="beside plain (default: all)")
    parser.add_argument("--ranks", type=int, default=2, help="group size (default: 2)")
    parser.add_argument("--rounds", type=int, default=10, help="turns of each variant (default: 10)")
    parser.add_argument("--steps", type=int, default=8, help="of a turn (default: 8)")
    parser.add_argument("--warm-up", type=int, default=3, help="steps before the first turn (default: 3)")
    parser.add_argument("--seconds", type=float, default=600.0, help="after which no round begins (default: 600)")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout instead of the table")
    options = parser.parse_args()
    rows = [row for wrapper in options.wrappers for row in measure(wrapper, options)]
    if options.json:
        document = {"schema": "simcoll.training/3", "date": date.today().isoformat(), "machine": machine()}
        print(json.dumps(document | {"steps": [asdict(row) for row in rows], "goals": GOALS}, indent=2))
        return
    console = Console()
    console.print(table(rows))
    for (wrapper, variant), reason in SKIPPED.items():
        console.print(f"{wrapper}, {variant}: skipped: {reason}")
    console.print(", ".join(f"{key} {value}" for key, value in machine().items()))


if __name__ == "__main__":
    main()
