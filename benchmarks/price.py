"""How long `simcoll estimate TRACE` takes over what a large job left, beside `simcoll verify` on the same files.

The black boxes of one job per row are written from one template (`benchmarks.verify_boxes`), then the command runs as a
user runs it, in a process of its own: start-up, reading, judging, matching, replaying and rendering. *collectives*:
10,000 of all ranks together. *groups*: tensor-parallel groups of 8, data-parallel groups across them, and all ranks.
*overlapping*: the same, every call asynchronous and waited for two calls later, so that streams share links.
*asynchronous*: collectives of all ranks together, likewise. *pipeline*: each rank takes from the one before and gives
to the one after, so many stages as ranks. The peer reads and judges the same files, and prices nothing. Nothing here is
a test: it measures, and says on what.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.costs import Cost, cost
from benchmarks.tables import bench_table
from benchmarks.verify_boxes import Job, write_job
from simcoll.blackbox import format as layout
from simcoll.blackbox.format import ring_offset
from simcoll.blackbox.ring_reader import SLOT_DTYPE
from simcoll.core.trace import ASYNCHRONOUS

SCENARIOS = {
    "collectives": "correct",
    "groups": "groups",
    "overlapping": "groups",
    "asynchronous": "correct",
    "pipeline": "pipeline",
}
_LATE = ("overlapping", "asynchronous")
GOALS_SECONDS = {"pipeline": 5.0, "asynchronous": 3.0}
GOAL_SECONDS = 10.0
"""The goal of the others."""
_LATE_NS = 1_800_000


@dataclass(frozen=True, slots=True)
class Row:
    """One job: what pricing it took, what verifying it took, and how many collectives it has."""

    scenario: str
    ranks: int
    records: int
    collectives: int
    price: Cost
    verify: Cost

    def to_json(self) -> dict[str, object]:
        """Without what the commands printed."""
        cells = asdict(self)
        for name in ("price", "verify"):
            del cells[name]["output"]
        return cells


def write(scenario: str, ranks: int, records: int, folder: Path) -> None:
    """Write a job's black boxes."""
    shutil.rmtree(folder, ignore_errors=True)
    write_job(Job(SCENARIOS[scenario], ranks, records), folder)
    if scenario in _LATE:
        for path in folder.glob(f"*{layout.SUFFIX}"):
            _overlap(path, records)
    # Otherwise the kernel is still writing these files to the disk while the command reads them.
    os.sync()


def _overlap(path: Path, records: int) -> None:
    """Let every call be asynchronous, and its wait end between the next call but one and the one behind that."""
    slots = np.memmap(path, SLOT_DTYPE, "r+", ring_offset(layout.GROUP_ROWS), (records,))
    slots["flags"] |= ASYNCHRONOUS
    slots["finished_ns"] += np.uint64(_LATE_NS)
    slots.flush()


def rows(options: argparse.Namespace, folder: Path) -> Iterator[Row]:
    """Every scenario."""
    topology = ["--gpu", "h100", "--nodes", str(-(-options.ranks // 8))]
    for scenario in options.scenarios:
        write(scenario, options.ranks, options.records, folder)
        command = [sys.executable, "-m", "simcoll"]
        found = [cost([*command, "estimate", str(folder), *topology], options.cores) for _ in range(options.rounds)]
        best = min(found, key=lambda one: one.seconds)
        if best.exit_code:
            raise RuntimeError(f"`simcoll estimate {folder}` exited {best.exit_code}: {best.output[-2000:]!r}")
        peer = cost([*command, "verify", str(folder)], options.cores)
        # The headline: 662,500 collectives of 1,024 ranks ...
        count = int(best.output.split()[0].replace(b",", b""))
        yield Row(scenario, options.ranks, options.records, count, best, peer)


def table_of(found: list[Row]) -> Table:
    """One line a job; what misses the goal in red."""
    names = ("scenario", "ranks", "calls", "matched", "s", "cpu s", "MiB", "peer s", "ratio")
    table = bench_table("simcoll estimate TRACE; peer: simcoll verify", *names, left=("scenario",))
    for row in found:
        colour = "green" if row.price.seconds <= GOALS_SECONDS.get(row.scenario, GOAL_SECONDS) else "red"
        table.add_row(
            row.scenario,
            f"{row.ranks:,}",
            f"{row.records:,}",
            f"{row.collectives:,}",
            f"[{colour}]{row.price.seconds:.2f}",
            f"{row.price.cpu_seconds:.2f}",
            f"{row.price.peak_mib:,.0f}",
            f"{row.verify.seconds:.2f}",
            f"{row.price.seconds / row.verify.seconds:.1f} x",
        )
    return table


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=1_024)
    parser.add_argument("--records", type=int, default=10_000, help="calls of each rank (default: 10,000)")
    parser.add_argument("--scenarios", nargs="+", choices=tuple(SCENARIOS), default=tuple(SCENARIOS), metavar="NAME")
    parser.add_argument("--cores", type=int, default=2, help="cores that a command may use (default: 2)")
    parser.add_argument("--rounds", type=int, default=1, help="the best of so many runs counts (default: 1)")
    parser.add_argument("--folder", help="where files are written for a while (default: the temporary folder)")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout instead of the table")
    return parser.parse_args()


def main() -> None:
    """Measure and print."""
    options = _options()
    with tempfile.TemporaryDirectory(prefix="simcoll-bench-", dir=options.folder) as base:
        found = list(rows(options, Path(base) / "job"))
    if options.json:
        document = {"schema": "simcoll.price-benchmark/1", "rows": [row.to_json() for row in found]}
        print(json.dumps(document, indent=2))
        return
    console = Console()
    console.print(table_of(found))
    cores = f"{options.cores} of {os.cpu_count()} cores"
    console.print(f"python {platform.python_version()}, {platform.machine()}, {cores}")


if __name__ == "__main__":
    main()
