"""What it costs a job to be watched: training steps while `simcoll top`, or `simcoll metrics`, looks at their records.

The transformer of benchmarks.training with DistributedDataParallel in mode record, on CPU ranks over Gloo, one core
each. One job makes turns of steps: while nobody watches, while `top` looks each second, and while `metrics` does
and is scraped each second. Each round begins with another of the three. A ratio is that of the times of a turn to
the turn of the same round without a watcher; median, least and largest over the rounds. CPU time is that of all
threads of all ranks: what a watcher itself takes stands beside it, as a share of one core. Where there are not more
cores than ranks, a watcher takes some of their wall time. Nothing here is a test.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rich.console import Console

from benchmarks.overhead import free_port, machine
from benchmarks.turns import MEASURES, Job, Turn

WATCHERS = ("nobody", "top", "metrics")
_SECONDS_TO_START = 3.0


@contextlib.contextmanager
def watched(watcher: str, folder: str) -> Iterator[list[float]]:
    """Have a job watched; at the end the list has the watcher's share of one core while the job was measured."""
    share: list[float] = []
    if watcher == "nobody":
        yield share
        return
    port = free_port()
    options = ["--plain"] if watcher == "top" else ["--listen", f"127.0.0.1:{port}"]
    command = [sys.executable, "-m", "simcoll", watcher, *options, folder]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    stop = threading.Event()
    scraper = threading.Thread(target=_scrape, args=(port, stop), daemon=True)
    try:
        if watcher == "metrics":
            scraper.start()
        time.sleep(_SECONDS_TO_START)
        before, began = _cpu_seconds(process.pid), time.monotonic()
        yield share
        share.append((_cpu_seconds(process.pid) - before) / (time.monotonic() - began))
    finally:
        stop.set()
        process.kill()
        process.wait()


def _scrape(port: int, stop: threading.Event) -> None:
    """Ask for the metrics each second, as Prometheus does."""
    while not stop.wait(1.0):
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            answer.read()


def _cpu_seconds(pid: int) -> float:
    """The CPU seconds that a process has taken so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(options: argparse.Namespace) -> dict[str, object]:
    """The ratios by watcher, what the watchers took, and the seconds of a step."""
    console = Console(stderr=True)
    rounds: list[dict[str, Turn]] = []
    shares: dict[str, list[float]] = {name: [] for name in WATCHERS[1:]}
    with tempfile.TemporaryDirectory(prefix="simcoll-bench-") as folder:
        job = Job({"SIMCOLL_MODE": "record", "SIMCOLL_OUT": folder}, "ddp", options.tokens, options.ranks, folder)
        try:
            job.turn(options.steps)
            for number in range(options.rounds):
                turns: dict[str, Turn] = {}
                for at in range(len(WATCHERS)):
                    watcher = WATCHERS[(number + at) % len(WATCHERS)]
                    with watched(watcher, folder) as share:
                        turns[watcher] = job.turn(options.steps)
                    shares.get(watcher, []).extend(share)
                rounds.append(turns)
                console.print(f"round {number + 1}: {ratios(rounds[-1:])}, load {os.getloadavg()[0]:.1f}")
        finally:
            job.end()
    return {
        "rounds": len(rounds),
        "step": round(statistics.median(one["nobody"]["wall"] for one in rounds) / options.steps, 4),
        "ratios": ratios(rounds),
        "of_a_core": {name: round(statistics.median(some), 3) for name, some in shares.items()},
        "load": round(os.getloadavg()[0], 1),
    }


def ratios(rounds: Sequence[Mapping[str, Turn]]) -> dict[str, dict[str, list[float]]]:
    """By watcher and measure the median ratio to the turn that nobody watched, the least and the largest."""
    return {
        watcher: {
            name: [
                round(of(one[watcher][name] / one["nobody"][name] for one in rounds), 3)
                for of in (statistics.median, min, max)
            ]
            for name in MEASURES
        }
        for watcher in WATCHERS[1:]
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=16, help="of a rank's batch (default: 16)")
    parser.add_argument("--ranks", type=int, default=2, help="group size (default: 2)")
    parser.add_argument("--rounds", type=int, default=7, help="turns of each kind (default: 7)")
    parser.add_argument("--steps", type=int, default=40, help="of a turn (default: 40)")
    options = parser.parse_args()
    print(json.dumps({"schema": "simcoll.watching/1", "machine": machine(), **measure(options)}, indent=2))


if __name__ == "__main__":
    main()
