"""How long `--executor` takes on one and on two workers of a Dask cluster on this machine, beside the command alone.

`verify` and `preflight` run as a user runs them, in a process of their own, start-up and the connection included; alone
they use both cores. Layouts are searched in this process, which is the client; alone it is one process. The command,
the scheduler and the workers share the machine's cores.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rich.console import Console

from benchmarks.tables import bench_table
from benchmarks.verify_boxes import Job, write_job
from simcoll.core.executors import opened
from simcoll.plan.model_files import model_named
from simcoll.plan.network import network_asked
from simcoll.plan.rates import Framework
from simcoll.plan.search import search
from simcoll.topology.request import TopologyRequest
from tests.support.engines import dask_cluster

PROGRAM = """\
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
for _ in range(20):
    dist.all_reduce(torch.ones(8))
"""
CLUSTERS = (16_384, 65_536, 131_072)
"""GPUs of the clusters on which layouts are searched: no single search has 100,000."""


@dataclass(frozen=True, slots=True)
class Row:
    """One command with so many workers; 0 without a cluster, on ``cores``."""

    work: str
    workers: int
    cores: int
    seconds: float
    exit_code: int


def commands(folder: Path, options: argparse.Namespace) -> Iterator[tuple[str, list[str]]]:
    """What is measured, by name."""
    if options.verify:
        write_job(Job("skipped", options.verify, options.records), folder / "boxes")
        os.sync()
        yield f"verify, {options.verify:,} ranks x {options.records:,}", ["verify", "--json", str(folder / "boxes")]
    if options.preflight:
        (folder / "train.py").write_text(PROGRAM, encoding="utf-8")
        size = str(options.preflight)
        words = [
            "preflight",
            "--json",
            "--device",
            "cpu",
            "--world-size",
            size,
            "--ranks",
            f"0-{options.preflight - 1}",
        ]
        yield (
            f"preflight, {options.preflight:,} ranks",
            [*words, "--out", str(folder / "out"), str(folder / "train.py")],
        )


@contextlib.contextmanager
def warm_cluster(folder: Path, workers: int) -> Iterator[str | None]:
    """The address of a cluster whose workers are there, and have imported what tasks import; None for no workers."""
    if not workers:
        yield None
        return
    with dask_cluster(folder, workers) as address:
        _run(["simulate", "--json", "SC201", "--explore", "16", "--executor", address], 1 << 10)
        yield address


def measured(work: str, words: Sequence[str], folder: Path, workers: int, cores: int) -> Row:
    """One run, with a cluster of its own where it has workers."""
    with warm_cluster(folder, workers) as address:
        more = [] if address is None else ["--executor", address]
        begin = time.perf_counter()
        code = _run([words[0], *more, *words[1:]], cores)
        return Row(work, workers, cores, time.perf_counter() - begin, code)


def searched(folder: Path, workers: int) -> Row:
    """The searches of a model that divides in many ways, on clusters of several sizes, one after the other."""
    model, fixed = model_named("qwen3-235b-a22b"), {"seq_len": 4096, "global_batch": 1 << 22}
    assert model.experts is not None
    model = replace(model, attention=128, moe=128, heads=128, kv_heads=128, experts=replace(model.experts, count=512))
    networks = [network_asked(TopologyRequest(gpu="h100", nodes=gpus // 8)) for gpus in CLUSTERS]
    with warm_cluster(folder, workers) as address, contextlib.ExitStack() as stack:
        begin = time.perf_counter()
        spread = None if address is None else stack.enter_context(opened(address))
        found = [search(model, network, Framework("torchtitan"), fixed, spread=spread) for network in networks]
        seconds = time.perf_counter() - begin
    return Row(f"{sum(one.layouts for one in found):,} layouts", workers, 1, seconds, 0)


def _run(words: Sequence[str], cores: int) -> int:
    def limit() -> None:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])

    command = [sys.executable, "-m", "simcoll", *words]
    return subprocess.run(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=limit, check=False
    ).returncode


def _rows(folder: Path, options: argparse.Namespace) -> Iterator[Row]:
    for work, words in commands(folder, options):
        yield from (measured(work, words, folder, workers, 2) for workers in options.workers)
    if options.search:
        yield from (searched(folder, workers) for workers in options.workers)


def main() -> None:
    """Measure, and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--verify", type=int, default=4_096, metavar="RANKS", help="0: not (default: %(default)s)")
    parser.add_argument("--records", type=int, default=2_000, help="of each rank (default: %(default)s)")
    parser.add_argument("--preflight", type=int, default=512, metavar="RANKS", help="0: not (default: %(default)s)")
    parser.add_argument("--search", action=argparse.BooleanOptionalAction, default=True, help="of layouts")
    parser.add_argument(
        "--workers", type=int, nargs="+", default=(0, 1, 2), help="0: without a cluster (default: 0 1 2)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout instead of the table")
    options = parser.parse_args()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as name:
        for row in _rows(Path(name), options):
            print(row, file=sys.stderr, flush=True)
            rows.append(row)
    if options.json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
        return
    table = bench_table("--executor, two cores", "work", "workers", "seconds", "exit code", left=("work",))
    for row in rows:
        table.add_row(row.work, str(row.workers or "-"), f"{row.seconds:.1f}", str(row.exit_code))
    Console().print(table)


if __name__ == "__main__":
    main()
