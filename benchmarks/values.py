"""What checking the values of collectives costs: training steps with `--values sample` and `all`, beside none.

The transformer of benchmarks.training, with DistributedDataParallel and FSDP2, in mode record, on two CPU ranks over
Gloo, one core each. A rank's batch is a sequence of 16 tokens, with which collectives, and so digests, are most of a
step, or of 256, still few beside real training. One job of each variant is started, and they take turns of one step,
another first in each round: so what a machine does in a minute falls on all alike. These jobs, a set, are started anew
several times, because equal jobs differ. A ratio is that of the times of all turns (`all` reads large models and states
of optimizers only now and then), beside it the bounds between which 95 of 100 draws of as many sets and rounds from
these lie. ``again`` is a second job without values, which shows how much of a ratio is noise. CPU time is that of all
threads of both ranks; memory is the peak of rank 0. A round of three jobs takes ten to fifteen seconds at 256 tokens:
`--wrappers`, `--variants` and `--tokens` choose, and `--seconds` ends a cell with the rounds that it has. Measure on a
machine that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence

from rich.console import Console

from benchmarks.overhead import machine
from benchmarks.turns import MEASURES, WRAPPERS, Set, add_extent, all_turns, extent_of, ratio, take_turns

BUDGET = 0.01
VALUES = {"off": "off", "again": "off", "sample": "sample", "all": "all"}
COMPARED = tuple(VALUES)[1:]
GOALS = {"sample": 1.01, "all": 1.25}


def switches(values: str, jobs: int) -> dict[str, str]:
    """The environment of a variant, one of so many jobs."""
    # The ranks stand still while others have their turn, and a budget is a share of the whole time.
    return {"SIMCOLL_MODE": "record", "SIMCOLL_VALUES": values, "SIMCOLL_VALUES_BUDGET": str(BUDGET / jobs)}


def measure(wrapper: str, tokens: int, options: argparse.Namespace) -> dict[str, object]:
    """The cell of one wrapper and batch: seconds of a step without values, and by variant and measure the ratios."""
    console = Console(stderr=True)
    names = ["off", *options.variants]
    sets = take_turns(
        {name: switches(VALUES[name], len(names)) for name in names},
        (wrapper, tokens, options.ranks),
        extent_of(options),
        lambda place, so_far: console.print(f"{place}, {shown(so_far)}"),
    )
    step = statistics.median(all_turns(sets, "off", "wall")) / options.steps
    return {"rounds": [len(rounds) for rounds in sets], "step": round(step, 4), "ratios": ratios(sets)}


def ratios(sets: Sequence[Set]) -> dict[str, dict[str, list[float]]]:
    """By variant and measure the ratio to the job without values, and for times its bounds; memory by its medians."""

    def memory(name: str) -> float:
        return statistics.median(rounds[-1][name]["memory"] for rounds in sets)

    return {
        name: {kind: ratio(sets, name, "off", kind) for kind in MEASURES}
        | {"memory": [round(memory(name) / memory("off"), 3)]}
        for name in sets[0][0].keys() - {"off"}
    }


def shown(sets: Sequence[Set]) -> str:
    """The ratios in one line."""
    return "; ".join(
        f"{name}: "
        + ", ".join(f"{kind} {' '.join(f'{one:.3f}' for one in of[kind])}" for kind in (*MEASURES, "memory"))
        for name, of in sorted(ratios(sets).items())
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wrappers", choices=WRAPPERS, nargs="+", default=WRAPPERS, help="default: both")
    parser.add_argument("--variants", choices=COMPARED, nargs="+", default=COMPARED, help="default: all of them")
    parser.add_argument("--tokens", type=int, nargs="+", default=[16, 256], help="of a rank's batch (default: 16 256)")
    parser.add_argument("--ranks", type=int, default=2, help="group size (default: 2)")
    add_extent(parser)
    options = parser.parse_args()
    cells = {
        f"{wrapper}, {tokens} tokens": measure(wrapper, tokens, options)
        for tokens in options.tokens
        for wrapper in options.wrappers
    }
    print(json.dumps({"schema": "simcoll.values/5", "machine": machine(), "cells": cells, "goals": GOALS}, indent=2))


if __name__ == "__main__":
    main()
