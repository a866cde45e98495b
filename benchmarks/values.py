"""What checking the values of collectives costs: a training step with `--values sample` and `all`, beside none.

The transformer of benchmarks.training, with DistributedDataParallel and FSDP2, in mode record, on two CPU ranks over
Gloo, one core each. A rank's batch is a sequence of 16 tokens, with which collectives, and so digests, are most of a
step, or of 256, still few beside real training. Every round starts fresh ranks for each variant; a ratio is the median
over the rounds of a variant's mean step divided by that of the same mode without (a sampled call is in few steps, which
a median would not show). Measure on a machine that does nothing else. Nothing here is a test.
"""

from __future__ import annotations

import argparse
import json
import statistics

from rich.console import Console

from benchmarks.overhead import launch, machine
from benchmarks.training import RANK_PROGRAM, WRAPPERS

MODE = {"SIMCOLL_MODE": "record"}
VARIANTS = {values: MODE | {"SIMCOLL_VALUES": values} for values in ("off", "sample", "all")}
GOALS = {"sample": 1.01, "all": 1.25}


def measure(rounds: int, steps: int, ranks: int, tokens: int, limit: float) -> dict[str, dict[str, float]]:
    """By wrapper and variant, how many times as long as without a step of so many tokens takes."""
    found: dict[str, dict[str, float]] = {}
    for wrapper in WRAPPERS:
        ratios: dict[str, list[float]] = {values: [] for values in GOALS}
        for turn in range(rounds):
            order = [*VARIANTS][turn % 3 :] + [*VARIANTS][: turn % 3]
            seconds = {}
            for values in order:
                Console(stderr=True).print(f"{wrapper}, {tokens} tokens: values {values}", style="dim")
                program = [str(RANK_PROGRAM), wrapper, str(steps), str(tokens)]
                [row] = launch(program, VARIANTS[values], ranks, limit)
                seconds[values] = float(str(row["mean"]))
            for values, one in ratios.items():
                one.append(seconds[values] / seconds["off"])
        found[wrapper] = {values: statistics.median(one) for values, one in ratios.items()}
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2, help="group size (default: 2)")
    parser.add_argument("--rounds", type=int, default=5, help="fresh processes per variant (default: 5)")
    parser.add_argument("--steps", type=int, default=40, help="steps that are timed per round (default: 40)")
    parser.add_argument("--tokens", type=int, nargs="+", default=[16, 256], help="of a rank's batch (default: 16 256)")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds for one variant's ranks (default: 600)")
    options = parser.parse_args()
    found = {
        tokens: measure(options.rounds, options.steps, options.ranks, tokens, options.limit)
        for tokens in options.tokens
    }
    print(json.dumps({"schema": "simcoll.values/2", "machine": machine(), "ratios": found, "goals": GOALS}, indent=2))


if __name__ == "__main__":
    main()
