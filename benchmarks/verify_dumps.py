"""`simcoll verify` beside `torchfrtrace` on the same Flight Recorder dumps, in one run: seconds and memory.

Both run as a user runs them: a process of its own, start-up, reading and judging included, on two cores, on dumps that
`benchmarks/flight_dumps.py` makes (no GPU is needed). The memory is the most that a command and its workers held
together (PSS, looked at twenty times a second). Nothing here is a test: it measures, and says on what.

    python -m benchmarks.verify_dumps --sizes 64x20000 512x2000
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.flight_dumps import write_dumps

SIZES = ((64, 20_000), (512, 2_000))
GOAL = 5.0
"""How many times faster than the peer."""
PEER = "torch.distributed.flight_recorder.fr_trace"
_LOOK_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Cost:
    """What one command took: seconds, and the most memory (MiB) that it held."""

    seconds: float
    peak_mib: float


@dataclass(frozen=True, slots=True)
class Row:
    """Both commands on the dumps of one job."""

    ranks: int
    entries: int
    file_mib: float
    ours: Cost
    peer: Cost

    @property
    def faster(self) -> float:
        """How many times faster than the peer."""
        return self.peer.seconds / self.ours.seconds


def measure(ranks: int, entries: int, cores: int, folder: Path) -> Row:
    """Write the dumps of a job and give them to both, with the files in the page cache."""
    size = write_dumps(folder, ranks, entries)
    ours = cost([sys.executable, "-m", "simcoll", "verify", str(folder)], cores)
    peer = cost([sys.executable, "-m", PEER, str(folder)], cores)
    return Row(ranks, entries, size / (1 << 20), ours, peer)


def cost(command: Sequence[str], cores: int) -> Cost:
    """Run one command, which must end well."""
    begin, peak = time.perf_counter(), 0.0
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, preexec_fn=lambda: _on_cores(cores)
        )
        while process.poll() is None:
            peak = max(peak, _tree_mib(process.pid))
            time.sleep(_LOOK_SECONDS)
        seconds = time.perf_counter() - begin
        output.seek(0)
        text = output.read()
    if process.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} exited {process.returncode}: {text[-2000:].decode()}")
    return Cost(seconds, peak)


def _on_cores(count: int) -> None:
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:count])


def _tree_mib(pid: int) -> float:
    """What a process and its descendants hold, shared pages counted once."""
    total, left = 0, [pid]
    while left:
        one = left.pop()
        try:
            rollup = Path(f"/proc/{one}/smaps_rollup").read_text()
            left += map(int, Path(f"/proc/{one}/task/{one}/children").read_text().split())
        except (OSError, ValueError):
            continue
        total += next((int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:")), 0)
    return total / 1024


def table(rows: Sequence[Row]) -> Table:
    """The rows, with what misses the goal in red."""
    drawn = Table(title="Flight Recorder dumps: simcoll verify, and torchfrtrace as peer", title_justify="left")
    for name in (
        "ranks",
        "entries",
        "files MiB",
        "verify s",
        "torchfrtrace s",
        "faster",
        "verify MiB",
        "torchfrtrace MiB",
    ):
        drawn.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        fast, small = row.faster >= GOAL, row.ours.peak_mib < row.peer.peak_mib
        drawn.add_row(
            f"{row.ranks:,}",
            f"{row.entries:,}",
            f"{row.file_mib:,.0f}",
            f"{row.ours.seconds:.2f}",
            f"{row.peer.seconds:.2f}",
            f"[{'green' if fast else 'red'}]{row.faster:.1f}x",
            f"[{'green' if small else 'red'}]{row.ours.peak_mib:,.0f}",
            f"{row.peer.peak_mib:,.0f}",
        )
    return drawn


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=_size, nargs="+", default=list(SIZES), help="such as 64x20000")
    parser.add_argument("--cores", type=int, default=2, help="cores that each command may use (default: 2)")
    parser.add_argument("--folder", type=Path, help="where the dumps are written for a while")
    options = parser.parse_args()
    rows = []
    for ranks, entries in options.sizes:
        with tempfile.TemporaryDirectory(prefix="simcoll-bench-", dir=options.folder) as folder:
            rows.append(measure(ranks, entries, options.cores, Path(folder)))
    console = Console()
    console.print(table(rows))
    console.print(f"Python {platform.python_version()}, {os.cpu_count()} cores, {platform.machine()}")


def _size(text: str) -> tuple[int, int]:
    ranks, _, entries = text.partition("x")
    return int(ranks), int(entries)


if __name__ == "__main__":
    main()
