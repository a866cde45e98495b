"""How each cost grows with the ranks, the calls and the groups of a job, beside its peer where it has one.

``make costs`` stores the results in ``data/growth.json`` and makes the page ``docs/costs.md`` of them. Counted are the
processors' seconds of whole commands, which a busy machine disturbs least; ``least`` is what the same command takes on
the smallest input, start-up included.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from rich.console import Console

from benchmarks.costs import Cost, cost
from benchmarks.flight_dumps import write_dumps
from benchmarks.verify import PEER
from benchmarks.verify_boxes import Job, write_job
from simcoll.blackbox import format as layout
from simcoll.core.steps import MARKS, is_marked, mark_place

TARGET = Path(__file__).parent / "data" / "growth.json"
SCHEMA = "simcoll.growth/1"
_SIMCOLL = (sys.executable, "-m", "simcoll")
_MARKED = 1_000
_LEAST = Job("correct", 2, 16)


@dataclass(frozen=True, slots=True)
class Point:
    """A cost at a size; ``mib`` is the memory, ``peer`` what the peer takes there."""

    size: int
    seconds: float
    mib: float
    peer: float | None = None


@dataclass(frozen=True, slots=True)
class Series:
    """One cost by one size (``ranks``, ``calls``, ``groups``, ``GPUs`` or ``entries``)."""

    name: str
    grows_with: str
    least: float
    points: tuple[Point, ...]
    peer: str = ""


def series(folder: Path) -> Iterator[Series]:
    """All series, one after the other, each in a folder that is made anew."""
    verified, read = _verify(folder), "opening and reading the same bytes"
    least = _of_job(folder, _LEAST, verified).cpu_seconds
    ranks = [(size, Job("correct", size, 500)) for size in (512, 2_048, 8_192)]
    yield Series("verify, 500 calls a rank", "ranks", least, _points(folder, ranks, verified, _read_seconds), read)
    calls = [(size, Job("correct", 256, size)) for size in (1_000, 4_000, 16_000)]
    yield Series("verify, 256 ranks", "calls", least, _points(folder, calls, verified, _read_seconds), read)
    groups = [(1, "correct"), (254, "overlapping"), (767, "many groups")]
    grouped = [(count, Job(scenario, 256, 2_000)) for count, scenario in groups]
    yield Series("verify, 256 ranks of 2,000 calls", "groups", least, _points(folder, grouped, verified))
    yield _dumps(folder, verified)
    seen = (*_SIMCOLL, "status", "--json", str(folder))
    least = _of_job(folder, _LEAST, seen, marks=_MARKED).cpu_seconds
    looked = [(size, Job("correct", size, 100)) for size in (256, 1_024, 4_096)]
    name = f"status, first look, {_MARKED:,} marked steps"
    yield Series(name, "ranks", least, _points(folder, looked, seen, marks=_MARKED))
    priced = (*_SIMCOLL, "estimate", str(folder), "--gpu", "h100", "--nodes")
    jobs = [(size, Job("groups", size, 500)) for size in (64, 256, 1_024)]
    least = _of_job(folder, Job("groups", 8, 16), (*priced, "1")).cpu_seconds
    points = tuple(_point(size, _of_job(folder, job, (*priced, str(size // 8)))) for size, job in jobs)
    yield Series("estimate of a record, 500 calls a rank", "ranks", least, points)
    asked = (*_SIMCOLL, "estimate", "all_reduce", "--bytes", "1GiB", "--gpu", "h100", "--nodes")
    found = {gpus: cost((*asked, str(gpus // 8)), _cores()) for gpus in (8, 512, 4_096, 16_384)}
    points = tuple(_point(gpus, one) for gpus, one in found.items() if gpus > 8)
    yield Series("estimate of one all_reduce", "GPUs", found[8].cpu_seconds, points)


def _verify(folder: Path) -> tuple[str, ...]:
    return (*_SIMCOLL, "verify", "--json", str(folder))


def _points(
    folder: Path,
    jobs: Sequence[tuple[int, Job]],
    command: Sequence[str],
    peer: Callable[[Path], float] | None = None,
    marks: int = 0,
) -> tuple[Point, ...]:
    found = []
    for size, job in jobs:
        ours = _of_job(folder, job, command, marks)
        found.append(_point(size, ours, None if peer is None else peer(folder)))
    return tuple(found)


def _point(size: int, ours: Cost, peer: float | None = None) -> Point:
    if ours.exit_code not in (0, 3, 4):
        raise RuntimeError(f"a command exited {ours.exit_code}: {ours.output[-2000:].decode()}")
    return Point(size, round(ours.cpu_seconds, 3), round(ours.peak_mib), None if peer is None else round(peer, 3))


def _of_job(folder: Path, job: Job, command: Sequence[str], marks: int = 0) -> Cost:
    shutil.rmtree(folder, ignore_errors=True)
    write_job(job, folder)
    for path in folder.iterdir() if marks else ():
        _mark(path, marks)
    return cost(command, _cores())


def _mark(path: Path, ended: int) -> None:
    """Let a black box have the marks of so many steps."""
    times = np.zeros(MARKS, np.uint64)
    for step in filter(is_marked, range(1, ended + 1)):
        times[mark_place(step)] = 1_800_000_000_000_000_000 + step * 1_000_000_000
    with path.open("r+b") as file:
        file.seek(layout.COUNTERS_OFFSET + layout.offset_of(layout.COUNTER_FIELDS, "steps"))
        file.write(ended.to_bytes(8, "little"))
        file.seek(layout.marks_offset(layout.GROUP_ROWS))
        file.write(times.tobytes())


def _read_seconds(folder: Path) -> float:
    """The processor's time to open each file, read its parts, and close it: no reader takes less."""
    begin = resource.getrusage(resource.RUSAGE_SELF)
    ring = layout.ring_offset(layout.GROUP_ROWS)
    for entry in os.scandir(folder):
        fd = os.open(entry.path, os.O_RDONLY)
        os.pread(fd, layout.PAGE, 0)
        end = os.lseek(fd, ring, os.SEEK_HOLE)
        os.pread(fd, end - ring, ring)
        os.pread(fd, layout.TABLE_CHUNK, ring + layout.DEFAULT_SLOTS * layout.SLOT.size)
        os.close(fd)
    after = resource.getrusage(resource.RUSAGE_SELF)
    return after.ru_utime + after.ru_stime - begin.ru_utime - begin.ru_stime


def _dumps(folder: Path, command: Sequence[str]) -> Series:
    """Dumps beside torchfrtrace, which reads and judges the same files."""

    def of(entries: int, ranks: int = 16) -> tuple[Cost, Cost]:
        shutil.rmtree(folder, ignore_errors=True)
        write_dumps(folder, ranks, entries, python=False)
        return cost(command, _cores()), cost([sys.executable, "-m", PEER, str(folder)], _cores())

    least = of(16, 2)[0].cpu_seconds
    points = []
    for entries in (500, 1_000, 2_000):
        ours, peer = of(entries)
        points.append(_point(entries, ours, peer.cpu_seconds))
    return Series("verify, dumps of 16 ranks", "entries", least, tuple(points), "torchfrtrace")


def _cores() -> int:
    return min(2, os.cpu_count() or 1)


def main() -> None:
    """Measure all, and store it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", help="where files are written for a while (default: the temporary folder)")
    parser.add_argument("--out", type=Path, default=TARGET, help="the file of results (default: %(default)s)")
    options = parser.parse_args()
    console, found = Console(stderr=True), []
    with tempfile.TemporaryDirectory(prefix="simcoll-bench-", dir=options.folder) as base:
        for one in series(Path(base) / "job"):
            costs = ", ".join(f"{point.seconds:.2f} s at {point.size:,}" for point in one.points)
            console.print(f"{one.name}: {costs} {one.grows_with}")
            found.append(asdict(one))
    machine = {"python": platform.python_version(), "machine": platform.machine(), "cores": os.cpu_count()}
    document = {"schema": SCHEMA, "date": datetime.now(UTC).date().isoformat(), "machine": machine, "series": found}
    options.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
