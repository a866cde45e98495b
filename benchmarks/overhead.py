"""What a call costs: plain, in simcoll's modes, and under TORCH_DISTRIBUTED_DEBUG=DETAIL, in turn in one run.

Every round starts fresh ranks for each variant, so that a machine that slows down slows all of them. A cell is the
median over the rounds of rank 0's medians. ``forwarded`` is a process group in Python that does nothing but pass the
call on. The goals are the last two columns: record adds at most 10 microseconds to forwarded, and detail adds less than
half of what DETAIL adds. Measure on a machine that does nothing else: ranks that wait for a core show that, and little
of the checker. Nothing here is a test: it measures, and says on what.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from dataclasses import asdict, dataclass
from datetime import date
from importlib.metadata import version
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.tables import bench_table
from simcoll.core.units import show_size

RANK_PROGRAM = Path(__file__).with_name("overhead_rank.py")
VARIANTS: dict[str, dict[str, str]] = {
    "plain": {},
    "forwarded": {"SIMCOLL_MODE": "record"},
    "record": {"SIMCOLL_MODE": "record"},
    "check": {"SIMCOLL_MODE": "check"},
    "detail": {"SIMCOLL_MODE": "detail"},
    "DETAIL": {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"},
}
SWITCHES = ("TORCH_DISTRIBUTED_DEBUG", "SIMCOLL_MODE", "SIMCOLL_VALUES")
SIZES = (4, 4096, 1 << 20)
GOAL = 0.5
RECORD_GOAL = 10e-6
Cell = tuple[int, int, str]


@dataclass(frozen=True, slots=True)
class Row:
    """One cell of the table: seconds per call for each variant, on rank 0."""

    ranks: int
    size: int
    pattern: str
    seconds: dict[str, float]

    def adds(self, variant: str, to: str = "plain") -> float:
        """Seconds per call on top of another variant."""
        return self.seconds[variant] - self.seconds[to]

    @property
    def ratio(self) -> float | None:
        """What detail adds, as a part of what DETAIL adds; None where DETAIL added nothing that could be measured."""
        return self.adds("detail") / self.adds("DETAIL") if self.adds("DETAIL") > 0 else None


def launch(program: list[str], switches: dict[str, str], ranks: int, limit: float) -> list[dict[str, object]]:
    """What rank 0 of fresh processes prints last, as JSON; raises RuntimeError with a rank's output if one fails."""
    with tempfile.TemporaryDirectory(prefix="simcoll-bench-") as folder:
        port = free_port()
        processes = [start(program, switches, rank, ranks, port, folder) for rank in range(ranks)]
        try:
            outputs = [process.communicate(timeout=limit) for process in processes]
        finally:
            for process in processes:
                process.kill()
    for rank, process in enumerate(processes):
        if process.returncode != 0:
            raise RuntimeError(f"{program}: rank {rank} of {ranks} exited {process.returncode}\n{outputs[rank][1]}")
    found: list[dict[str, object]] = json.loads(outputs[0][0].splitlines()[-1])
    return found


def start(
    program: list[str],
    switches: dict[str, str],
    rank: int,
    ranks: int,
    port: int,
    folder: str,
    stdin: int | None = None,
    stderr: int | None = subprocess.PIPE,
) -> subprocess.Popen[str]:
    """One rank as a process of its own, in a folder that may be littered."""
    environment = {key: value for key, value in os.environ.items() if key not in SWITCHES}
    environment |= {"RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    environment |= {"OMP_NUM_THREADS": "1"} | switches
    return subprocess.Popen(
        [sys.executable, *program],
        env=environment,
        cwd=folder,
        text=True,
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=stderr,
    )


def free_port() -> int:
    """A port that nobody listens on at this moment."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def measure(worlds: list[int], rounds: int, iterations: int, limit: float) -> list[Row]:
    """All cells; the variants take turns, and another one begins each round."""
    samples: dict[str, dict[Cell, list[float]]] = {variant: defaultdict(list) for variant in VARIANTS}
    progress = Console(stderr=True)
    order = list(VARIANTS)
    for turn in range(rounds):
        for ranks in worlds:
            for variant in order[turn % len(order) :] + order[: turn % len(order)]:
                progress.print(f"round {turn + 1}/{rounds}: {variant}, {ranks} ranks", style="dim")
                program = [str(RANK_PROGRAM), variant, ",".join(map(str, SIZES)), str(iterations)]
                for row in launch(program, VARIANTS[variant], ranks, limit):
                    cell = (ranks, int(str(row["size"])), str(row["pattern"]))
                    samples[variant][cell].append(float(str(row["seconds"])))
    return [
        Row(*cell, {variant: statistics.median(samples[variant][cell]) for variant in VARIANTS})
        for cell in samples["plain"]
    ]


def table(rows: list[Row]) -> Table:
    """Microseconds per call, and what the goals are about: what record adds, and the ratio of detail to DETAIL."""
    title = "all_reduce over Gloo, microseconds per call on rank 0 (medians)"
    drawn = bench_table(title, "ranks", "size", "call", *VARIANTS, "+record", "ratio", left=("call",))
    for row in rows:
        microseconds = (f"{seconds * 1e6:,.0f}" for seconds in row.seconds.values())
        drawn.add_row(str(row.ranks), show_size(row.size), row.pattern, *microseconds, recording(row), verdict(row))
    return drawn


def recording(row: Row) -> str:
    """What record adds to forwarded, green where the goal is met."""
    added = row.adds("record", "forwarded")
    return f"[{'green' if added <= RECORD_GOAL else 'red'}]{added * 1e6:,.0f}"


def verdict(row: Row) -> str:
    """The ratio, green where the goal is met."""
    if row.ratio is None:
        return "-"
    return f"[{'green' if row.ratio < GOAL else 'red'}]{row.ratio:.2f}"


def machine() -> dict[str, str | int | None]:
    """On what was measured."""
    return {
        "python": platform.python_version(),
        "torch": version("torch"),
        "simcoll": version("simcoll"),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4], help="group sizes (default: 2 4)")
    parser.add_argument("--rounds", type=int, default=5, help="fresh processes per variant (default: 5)")
    parser.add_argument("--iterations", type=int, default=100, help="calls per cell and round (default: 100)")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds for one variant's ranks (default: 300)")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout instead of the table")
    options = parser.parse_args()
    rows = measure(options.ranks, options.rounds, options.iterations, options.limit)
    if options.json:
        cells = [asdict(row) | {"ratio": row.ratio} for row in rows]
        document = {"schema": "simcoll.overhead/3", "date": date.today().isoformat(), "machine": machine()}
        print(json.dumps(document | {"rounds": options.rounds, "seconds": cells}, indent=1))
        return
    console = Console()
    console.print(table(rows))
    console.print(", ".join(f"{key} {value}" for key, value in machine().items()))


if __name__ == "__main__":
    main()
