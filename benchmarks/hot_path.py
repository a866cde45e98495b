"""What a call adds to a rank in each mode, in CPU time and wall time, over a group that only passes calls on.

Two ranks over Gloo make all_reduces of 4 bytes and wait between them, so that caches are cold, as they are in training.
A job of each variant runs all the time, and they take turns of some calls, in another order each round: what is shown
is the median over the rounds of the difference to ``forwarded`` in the same round, and the quartiles. CPU time is that
of the thread that makes the calls, user and system: Gloo's own threads poll, which would hide the rest. The goals hold
on a machine that does nothing else. ``--beside NAME=FOLDER`` adds the modes of another simcoll, for which a folder is
put in front of ``PYTHONPATH``; ``NAME:VARIABLE=VALUE`` those of this one with a variable of the environment, as
``python:SIMCOLL_NATIVE=0``. Two jobs of the same code were up to 18 us apart, round for round: compare two simcolls by
naming each folder twice. Nothing here is a test: it measures.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console

from benchmarks.overhead import VARIANTS, free_port, machine, start
from benchmarks.tables import bench_table

RANK_PROGRAM = Path(__file__).with_name("overhead_rank.py")
PATTERNS = ("sync", "async")
MODES = ("record", "check", "detail")
GOALS = {("sync", "record"): (10, 15), ("sync", "check"): (20, 20), ("async", "record"): (12, None)}
"""Microseconds of CPU and of wall time, at most; None where there is no goal."""

Taken = tuple[float, float]
"""Seconds of CPU and of wall time of a call."""

Variant = tuple[str, Mapping[str, str]]
"""A mode, and variables of the environment beside those of the mode."""


def job(mode: str, switches: Mapping[str, str], folder: str) -> list[subprocess.Popen[str]]:
    """The two ranks of a variant, ready to make calls."""
    port, variables = free_port(), {**VARIANTS[mode], **switches}
    program = [str(RANK_PROGRAM), mode, "turns"]
    ranks = [start(program, variables, rank, 2, port, folder, subprocess.PIPE, None) for rank in range(2)]
    for rank in ranks:
        assert rank.stdout is not None
        if rank.stdout.readline() != "ready\n":
            raise RuntimeError(f"a rank of {mode} did not start")
    return ranks


def turn(ranks: list[subprocess.Popen[str]], pattern: str, calls: int, pause: float) -> Taken:
    """What a call takes, of some in a row; the mean of the ranks."""
    for rank in ranks:
        assert rank.stdin is not None
        rank.stdin.write(f"{pattern} {calls} {pause}\n")
        rank.stdin.flush()
    answers = [json.loads(rank.stdout.readline()) for rank in ranks if rank.stdout is not None]
    return statistics.mean(one[0] for one in answers), statistics.mean(one[1] for one in answers)


def measure(variants: Mapping[str, Variant], options: argparse.Namespace) -> list[dict[str, object]]:
    """The rows: pattern, variant, and the quartiles of what it adds, in microseconds of CPU and of wall time."""
    taken: dict[tuple[str, str], list[Taken]] = {(pattern, name): [] for pattern in PATTERNS for name in variants}
    with tempfile.TemporaryDirectory(prefix="simcoll-bench-") as folder:
        jobs: dict[str, list[subprocess.Popen[str]]] = {}
        try:
            for name, (mode, switches) in variants.items():
                jobs[name] = job(mode, switches, folder)
            for _ in range(options.rounds):
                order = list(variants)
                random.shuffle(order)
                for pattern in PATTERNS:
                    for name in order:
                        taken[pattern, name].append(turn(jobs[name], pattern, options.calls, options.pause))
        finally:
            for ranks in jobs.values():
                for rank in ranks:
                    rank.kill()
                    rank.communicate()
    return [
        {"pattern": pattern, "variant": name, **added(taken[pattern, name], taken[pattern, "forwarded"])}
        for pattern, name in taken
        if name != "forwarded"
    ]


def added(some: list[Taken], forwarded: list[Taken]) -> dict[str, object]:
    """The quartiles of the differences in a round, in microseconds."""
    turns = list(zip(some, forwarded, strict=True))
    cpu, wall = ([(one[side] - other[side]) * 1e6 for one, other in turns] for side in (0, 1))
    return {"cpu": statistics.quantiles(cpu, n=4), "wall": statistics.quantiles(wall, n=4)}


def shown(quartiles: object, goal: float | None) -> str:
    """The median and the quartiles, coloured where there is a goal."""
    assert isinstance(quartiles, list)
    low, middle, high = quartiles
    text = f"{middle:.0f}" if goal is None else f"[{'green' if middle <= goal else 'red'}]{middle:.0f}[/] of {goal}"
    return f"{text} ({low:.0f}..{high:.0f})"


def beside(text: str) -> dict[str, Variant]:
    """The modes of another simcoll, or of this one with another variable."""
    named, _, value = text.partition("=")
    name, _, variable = named.partition(":")
    return {f"{mode}, {name}": (mode, {variable or "PYTHONPATH": value}) for mode in MODES}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30, help="turns of each variant (default: 30)")
    parser.add_argument("--calls", type=int, default=60, help="of a turn (default: 60)")
    parser.add_argument("--pause", type=float, default=0.0005, help="seconds between two calls (default: 0.0005)")
    parser.add_argument("--beside", default=[], nargs="+", metavar="NAME=FOLDER", help="another simcoll, or variable")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout instead of the table")
    options = parser.parse_args()
    variants: dict[str, Variant] = {mode: (mode, {}) for mode in ("forwarded", "plain", *MODES)}
    for text in options.beside:
        variants |= beside(text)
    rows = measure(variants, options)
    if options.json:
        print(json.dumps({"schema": "simcoll.hot-path/1", "machine": machine(), "added": rows}, indent=1))
        return
    drawn = bench_table("added to a forwarded call, microseconds", "call", "mode", "CPU", "wall", left=("call", "mode"))
    for row in rows:
        goals = GOALS.get((str(row["pattern"]), str(row["variant"])), (None, None))
        drawn.add_row(
            str(row["pattern"]), str(row["variant"]), shown(row["cpu"], goals[0]), shown(row["wall"], goals[1])
        )
    console = Console()
    console.print(drawn)
    console.print(", ".join(f"{key} {value}" for key, value in machine().items()))


if __name__ == "__main__":
    main()
