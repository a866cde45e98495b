"""How long `simcoll verify` takes over what a large job left, in how much memory, and how both grow.

Two tables. *Black boxes*: the files of one job per row (written from one template, column by column), in scenarios
with and without a bug. *Flight Recorder dumps*: the command beside torch's own `torchfrtrace` on the same dumps, which
need no GPU to be made. Every command runs as a user runs it, in a process of its own, start-up, reading, judging and
rendering included, on two cores. ``x2`` is how many times the processors' seconds grow with twice the records: 2 or
less is linear. Nothing here is a test: it measures, and says on what.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.costs import NOTHING, Cost, cost
from benchmarks.flight_dumps import write_dumps
from benchmarks.tables import bench_table
from benchmarks.verify_boxes import SCENARIOS, Job, write_job

BOXES = ((64, 20_000), (512, 2_000), (4_096, 2_000), (16_384, 500))
DUMPS = ((64, 20_000), (512, 2_000))
GOAL_SECONDS, GOAL_MIB, GOAL_FASTER = 10.0, 4096.0, 5.0
PEER = "torch.distributed.flight_recorder.fr_trace"
PEER_LIMIT_SECONDS = 900.0


@dataclass(frozen=True, slots=True)
class Row:
    """One run over ``records`` of each rank: what it found, what it took, the same with twice the records, the peer."""

    scenario: str
    ranks: int
    records: int
    codes: tuple[str, ...] = ()
    cost: Cost = NOTHING
    doubled: Cost | None = None
    peer: Cost | None = None

    @property
    def growth(self) -> float | None:
        """Times longer with twice the records."""
        return None if self.doubled is None else self.doubled.cpu_seconds / self.cost.cpu_seconds

    @property
    def faster(self) -> float | None:
        """How many times faster than the peer; at least so many where the peer was not waited for to its end."""
        return None if self.peer is None else self.peer.seconds / self.cost.seconds

    def to_json(self) -> dict[str, object]:
        """Without what the commands printed."""
        cells = asdict(self)
        for name in ("cost", "doubled", "peer"):
            if cells[name] is not None:
                del cells[name]["output"]
        return cells | {"growth": self.growth, "faster": self.faster}


def verify(folder: Path, cores: int) -> tuple[tuple[str, ...], Cost]:
    """The codes that the command finds in a folder, and what it takes."""
    ours = cost([sys.executable, "-m", "simcoll", "verify", "--json", str(folder)], cores)
    if ours.exit_code not in (0, 3):
        raise RuntimeError(f"`simcoll verify {folder}` exited {ours.exit_code}: {ours.output[-2000:].decode()}")
    return tuple(finding["code"] for finding in json.loads(ours.output)["findings"]), ours


def measured(row: Row, write: Callable[[int], object], folder: Path, options: argparse.Namespace) -> Row:
    """The row with what it took: the best of some rounds, and once with twice the records."""
    _fresh(folder, write, row.records)
    codes, ours = min((verify(folder, options.cores) for _ in range(options.rounds)), key=_seconds)
    doubled = None
    if options.twice:
        _fresh(folder, write, 2 * row.records)
        doubled = verify(folder, options.cores)[1]
    return replace(row, codes=codes, cost=ours, doubled=doubled)


def _seconds(verified: tuple[tuple[str, ...], Cost]) -> float:
    return verified[1].seconds


def _fresh(folder: Path, write: Callable[[int], object], records: int) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    write(records)
    # Otherwise the kernel is still writing these files to the disk while the command reads them.
    os.sync()


def black_boxes(options: argparse.Namespace, folder: Path) -> Iterator[Row]:
    """Every scenario at every size."""
    for ranks, records in options.boxes:
        for scenario in options.scenarios:

            def write(count: int, scenario: str = scenario, ranks: int = ranks) -> None:
                write_job(Job(scenario, ranks, count), folder)

            yield measured(Row(scenario, ranks, records), write, folder, options)


def flight_recorder_dumps(options: argparse.Namespace, folder: Path) -> Iterator[Row]:
    """Every size, as both picklers write it, beside the peer on the same files."""
    for (ranks, records), python in product(options.dumps, (False, True)):

        def write(count: int, ranks: int = ranks, python: bool = python) -> None:
            write_dumps(folder, ranks, count, python=python)

        _fresh(folder, write, records)
        peer = cost([sys.executable, "-m", PEER, str(folder)], options.cores, options.peer_limit)
        if peer.ended and peer.exit_code != 0:
            raise RuntimeError(f"torchfrtrace exited {peer.exit_code}: {peer.output[-2000:].decode()}")
        yield measured(Row("Python" if python else "torch", ranks, records, peer=peer), write, folder, options)


def boxes_table(rows: Sequence[Row]) -> Table:
    """The rows over black boxes; what misses the goal in red."""
    names = ("scenario", "found", "ranks", "records", "seconds", "cpu s", "records a second", "MiB", "x2")
    table = bench_table("Black boxes", *names, left=("scenario", "found"))
    for row in rows:
        table.add_row(
            row.scenario,
            " ".join(row.codes) or "-",
            f"{row.ranks:,}",
            f"{row.records:,}",
            _marked(f"{row.cost.seconds:.2f}", row.cost.seconds <= GOAL_SECONDS),
            f"{row.cost.cpu_seconds:.2f}",
            f"{row.ranks * row.records / row.cost.seconds / 1e6:.2f} M",
            _marked(f"{row.cost.peak_mib:,.0f}", row.cost.peak_mib <= GOAL_MIB),
            "-" if row.growth is None else f"{row.growth:.2f}",
        )
    return table


def dumps_table(rows: Sequence[Row]) -> Table:
    """The rows over dumps; ``>`` where the peer was stopped at its time limit."""
    names = ("pickled by", "ranks", "entries", "verify s", "peer s", "faster", "verify MiB", "peer MiB", "x2")
    table = bench_table("Flight Recorder dumps; peer: torchfrtrace", *names, left=("pickled by",))
    for row in rows:
        if row.peer is None or row.faster is None:
            continue
        more = "" if row.peer.ended else ">"
        table.add_row(
            row.scenario,
            f"{row.ranks:,}",
            f"{row.records:,}",
            f"{row.cost.seconds:.2f}",
            f"{more}{row.peer.seconds:.0f}",
            _marked(f"{more}{row.faster:.0f} x", row.faster >= GOAL_FASTER),
            _marked(f"{row.cost.peak_mib:,.0f}", row.cost.peak_mib < row.peer.peak_mib),
            f"{more}{row.peer.peak_mib:,.0f}",
            "-" if row.growth is None else f"{row.growth:.2f}",
        )
    return table


def _marked(text: str, good: bool) -> str:
    return f"[{'green' if good else 'red'}]{text}"


def _size(text: str) -> tuple[int, int]:
    ranks, _, records = text.partition("x")
    return int(ranks), int(records)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--boxes", type=_size, nargs="*", default=BOXES, metavar="RANKSxRECORDS", help="black boxes")
    parser.add_argument("--scenarios", nargs="+", choices=SCENARIOS, default=SCENARIOS, metavar="NAME")
    parser.add_argument("--dumps", type=_size, nargs="*", default=DUMPS, metavar="RANKSxENTRIES", help="dumps")
    parser.add_argument("--cores", type=int, default=2, help="cores that a command may use (default: 2)")
    parser.add_argument("--rounds", type=int, default=1, help="the best of so many runs counts (default: 1)")
    parser.add_argument("--twice", action="store_true", help="run each row with twice the records too")
    parser.add_argument(
        "--peer-limit",
        type=float,
        default=PEER_LIMIT_SECONDS,
        metavar="SECONDS",
        help="stop torchfrtrace after so long (default: %(default)s)",
    )
    parser.add_argument("--folder", help="where files are written for a while (default: the temporary folder)")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout instead of the tables")
    return parser.parse_args()


def _told(rows: Iterator[Row], progress: Console) -> list[Row]:
    done = []
    for row in rows:
        progress.print(f"{row.scenario}: {row.ranks:,} x {row.records:,}: {row.cost.seconds:.2f} s", style="dim")
        done.append(row)
    return done


def main() -> None:
    """Measure and print."""
    options, progress = _options(), Console(stderr=True)
    with tempfile.TemporaryDirectory(prefix="simcoll-bench-", dir=options.folder) as base:
        folder = Path(base) / "job"
        boxes = _told(black_boxes(options, folder), progress)
        dumps = _told(flight_recorder_dumps(options, folder), progress)
    if options.json:
        cells = [row.to_json() for row in [*boxes, *dumps]]
        print(json.dumps({"schema": "simcoll.verify-benchmark/2", "rows": cells}, indent=2))
        return
    console = Console()
    for rows, draw in ((boxes, boxes_table), (dumps, dumps_table)):
        if rows:
            console.print(draw(rows))
    console.print(
        f"python {platform.python_version()}, {platform.machine()}, {options.cores} of {os.cpu_count()} cores"
    )


if __name__ == "__main__":
    main()
