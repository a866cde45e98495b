"""What checking the values of collectives costs: training steps with `--values sample` and `all`, beside none.

The transformer of benchmarks.training, with DistributedDataParallel and FSDP2, in mode record, on two CPU ranks over
Gloo, one core each. A rank's batch is a sequence of 16 tokens, with which collectives, and so digests, are most of a
step, or of 256, still few beside real training. One job of each variant is started, and they take turns: 16 steps each,
as `all` reads large models and states of optimizers only now and then. A ratio is that of the times of two turns of one
round, the median over the rounds, beside it the least and the largest. CPU time is that of all threads of both ranks;
memory is the peak of rank 0. A round takes a minute at 16 tokens, three at 256: `--wrappers` and `--tokens` choose one
cell, and `--seconds` ends it with the rounds that it has. Measure on a machine that does nothing else. Nothing here is
a test.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence

from rich.console import Console

from benchmarks.overhead import machine
from benchmarks.training import WRAPPERS, Job, Turn

BUDGET = 0.01
VALUES = ("off", "sample", "all")
GOALS = {"sample": 1.01, "all": 1.25}
MEASURES = ("wall", "cpu", "memory")


def switches(values: str) -> dict[str, str]:
    """The environment of a variant."""
    # The ranks stand still while others have their turn, and a budget is a share of the whole time.
    return {"SIMCOLL_MODE": "record", "SIMCOLL_VALUES": values, "SIMCOLL_VALUES_BUDGET": str(BUDGET / len(VALUES))}


def measure(wrapper: str, tokens: int, options: argparse.Namespace) -> dict[str, object]:
    """The cell of one wrapper and batch: seconds of a step without values, and by variant and measure the ratios."""
    console, began = Console(stderr=True), time.monotonic()
    rounds: list[dict[str, Turn]] = []
    with tempfile.TemporaryDirectory(prefix="simcoll-bench-") as folder:
        jobs = {values: Job(switches(values), wrapper, tokens, options.ranks, folder) for values in VALUES}
        try:
            for job in jobs.values():
                job.turn(options.warm_up)
            while len(rounds) < options.rounds and time.monotonic() - began < options.seconds:
                order = [*VALUES][len(rounds) % 3 :] + [*VALUES][: len(rounds) % 3]
                rounds.append({values: jobs[values].turn(options.steps) for values in order})
                console.print(f"{wrapper}, {tokens} tokens: {time.monotonic() - began:.0f} s, {shown(rounds[-1:])}")
        finally:
            for job in jobs.values():
                job.end()
    step = statistics.median(one["off"]["wall"] for one in rounds) / options.steps
    return {"rounds": len(rounds), "step": round(step, 4), "ratios": ratios(rounds)}


def ratios(rounds: Sequence[Mapping[str, Turn]]) -> dict[str, dict[str, list[float]]]:
    """By variant and measure the median ratio to the turn without values, the least and the largest."""
    found: dict[str, dict[str, list[float]]] = defaultdict(dict)
    for values in GOALS:
        for name in MEASURES:
            some = [one[values][name] / one["off"][name] for one in rounds]
            found[values][name] = [round(one, 3) for one in (statistics.median(some), min(some), max(some))]
    return found


def shown(rounds: Sequence[Mapping[str, Turn]]) -> str:
    """The medians in one line."""
    return "; ".join(
        f"{values}: " + ", ".join(f"{name} {of[name][0]:.3f}" for name in MEASURES)
        for values, of in ratios(rounds).items()
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wrappers", choices=WRAPPERS, nargs="+", default=WRAPPERS, help="default: both")
    parser.add_argument("--tokens", type=int, nargs="+", default=[16, 256], help="of a rank's batch (default: 16 256)")
    parser.add_argument("--ranks", type=int, default=2, help="group size (default: 2)")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each variant (default: 5)")
    parser.add_argument("--steps", type=int, default=16, help="of a turn (default: 16)")
    parser.add_argument("--warm-up", type=int, default=3, help="steps before the first turn (default: 3)")
    parser.add_argument("--seconds", type=float, default=600.0, help="after which no round begins (default: 600)")
    options = parser.parse_args()
    cells = {
        f"{wrapper}, {tokens} tokens": measure(wrapper, tokens, options)
        for tokens in options.tokens
        for wrapper in options.wrappers
    }
    print(json.dumps({"schema": "simcoll.values/3", "machine": machine(), "cells": cells, "goals": GOALS}, indent=2))


if __name__ == "__main__":
    main()
