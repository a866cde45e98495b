"""How long `simcoll verify` takes over the black boxes of a large job, in how much memory, and how both grow.

Each row makes the black boxes of one job (the ranks' files are written from one template, column by column), and runs
the command as a user does: a process of its own, start-up, reading, judging and rendering included, on two cores. The
memory is the most that the command and its workers held together (PSS, looked at twenty times a second). ``x2`` is how
many times the processors' seconds grow with twice the records: 2 or less is linear. Nothing here is a test: it
measures, and says on what.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.verify_boxes import SCENARIOS, Job, write_job

SIZES = ((64, 20_000), (512, 2_000), (4_096, 2_000))
GOAL_SECONDS, GOAL_MIB = 10.0, 4096.0
_LOOK_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Row:
    """One run: what was verified, how long it took, and how long processors were at work, the most memory (MiB).

    ``codes`` are the findings, ``seconds_x2`` the processors' seconds with twice the records.
    """

    scenario: str
    ranks: int
    records: int
    seconds: float
    cpu_seconds: float
    peak_mib: float
    codes: tuple[str, ...]
    seconds_x2: float | None = None

    @property
    def rate(self) -> float:
        """Records of all ranks per second."""
        return self.ranks * self.records / self.seconds

    @property
    def growth(self) -> float | None:
        """Times longer with twice the records."""
        return None if self.seconds_x2 is None else self.seconds_x2 / self.cpu_seconds


def measure(job: Job, cores: int, folder: Path) -> Row:
    """Write the job's black boxes and verify them once, with the files in the page cache."""
    shutil.rmtree(folder, ignore_errors=True)
    write_job(job, folder)
    command = [sys.executable, "-m", "simcoll", "verify", "--json", str(folder)]
    begin = time.perf_counter()
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen(command, stdout=out, preexec_fn=lambda: _on_cores(cores))
        peak = 0.0
        while not (ended := os.wait4(process.pid, os.WNOHANG))[0]:
            peak = max(peak, _tree_mib(process.pid))
            time.sleep(_LOOK_SECONDS)
        seconds = time.perf_counter() - begin
        process.returncode = os.waitstatus_to_exitcode(ended[1])
        out.seek(0)
        text = out.read()
    if process.returncode not in (0, 3):
        raise RuntimeError(f"{job}: `simcoll verify` exited {process.returncode}")
    codes = [finding["code"] for finding in json.loads(text)["findings"]]
    cpu_seconds = ended[2].ru_utime + ended[2].ru_stime
    return Row(job.scenario, job.ranks, job.records, seconds, cpu_seconds, peak, tuple(codes))


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
    drawn = Table(title="simcoll verify, black boxes", title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in ("scenario", "found", "ranks", "records", "seconds", "cpu s", "records/s", "peak MiB", "x2"):
        drawn.add_column(name, justify="left" if name in ("scenario", "found") else "right", no_wrap=True)
    for row in rows:
        drawn.add_row(
            row.scenario,
            " ".join(row.codes) or "-",
            f"{row.ranks:,}",
            f"{row.records:,}",
            _marked(f"{row.seconds:.2f}", row.seconds <= GOAL_SECONDS),
            f"{row.cpu_seconds:.2f}",
            f"{row.rate / 1e6:.2f} M",
            _marked(f"{row.peak_mib:,.0f}", row.peak_mib <= GOAL_MIB),
            "-" if row.growth is None else f"{row.growth:.2f}",
        )
    return drawn


def _marked(text: str, good: bool) -> str:
    return f"[{'green' if good else 'red'}]{text}"


def measure_all(options: argparse.Namespace, progress: Console) -> list[Row]:
    """Every scenario at every size."""
    rows = []
    with tempfile.TemporaryDirectory(prefix="simcoll-bench-", dir=options.folder) as folder:
        for ranks, records in options.sizes:
            for scenario in options.scenarios:
                job = Job(scenario, ranks, records)
                progress.print(f"{scenario}: {ranks:,} ranks x {records:,} records", style="dim")
                row = min((measure(job, options.cores, Path(folder) / "job") for _ in range(options.rounds)), key=_time)
                if options.twice:
                    double = replace(job, records=2 * records)
                    row = replace(row, seconds_x2=measure(double, options.cores, Path(folder) / "job").cpu_seconds)
                rows.append(row)
    return rows


def _time(row: Row) -> float:
    return row.seconds


def _size(text: str) -> tuple[int, int]:
    ranks, _, records = text.partition("x")
    return int(ranks), int(records)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=_size, nargs="+", default=list(SIZES), help="such as 4096x2000")
    parser.add_argument("--scenarios", nargs="+", choices=SCENARIOS, default=list(SCENARIOS), metavar="NAME")
    parser.add_argument("--cores", type=int, default=2, help="cores that the command may use (default: 2)")
    parser.add_argument("--rounds", type=int, default=1, help="the best of so many runs counts (default: 1)")
    parser.add_argument("--twice", action="store_true", help="run each row with twice the records too")
    parser.add_argument("--folder", help="where the black boxes are written (default: the temporary folder)")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout instead of the table")
    options = parser.parse_args()
    rows = measure_all(options, Console(stderr=True))
    if options.json:
        cells = [asdict(row) | {"rate": row.rate, "growth": row.growth} for row in rows]
        print(json.dumps({"schema": "simcoll.verify-benchmark/1", "rows": cells}, indent=2))
        return
    console = Console()
    console.print(table(rows))
    console.print(
        f"python {platform.python_version()}, {platform.machine()}, {options.cores} of {os.cpu_count()} cores"
    )


if __name__ == "__main__":
    main()
