"""What a training step costs: plain, in simcoll's modes, and under TORCH_DISTRIBUTED_DEBUG=DETAIL, in turn in one run.

A transformer of 56 million parameters on two CPU ranks over Gloo, with DistributedDataParallel and with FSDP2, on a
tiny batch, so that communication is most of a step. Every round starts fresh ranks for each variant; a cell is the
median over the rounds of a variant's median step divided by that of plain in the same round. The goal: a step under
check takes at most 5 % longer than plain. Measure on a machine that does nothing else. Nothing here is a test.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.overhead import VARIANTS, launch, machine
from benchmarks.tables import bench_table

RANK_PROGRAM = Path(__file__).with_name("training_rank.py")
WRAPPERS = ("ddp", "fsdp2")
COMPARED = ("record", "check", "detail", "DETAIL")
SKIPPED = {
    ("ddp", "DETAIL"): "DETAIL ends a DistributedDataParallel program with a segmentation fault (torch 2.13, 2.15)"
}
GOALS = {"check": 0.05}


@dataclass(frozen=True, slots=True)
class Row:
    """One wrapper: the median plain step in seconds, and what each variant adds, as a part of it."""

    wrapper: str
    parameters: int
    plain: float
    added: dict[str, float]


def measure(rounds: int, steps: int, ranks: int, limit: float) -> list[Row]:
    """All rows; the variants take turns, and another one begins each round."""
    rows = []
    for wrapper in WRAPPERS:
        variants = [variant for variant in ("plain", *COMPARED) if (wrapper, variant) not in SKIPPED]
        ratios: dict[str, list[float]] = defaultdict(list)
        plain: list[float] = []
        for turn in range(rounds):
            place = turn % len(variants)
            found = {name: one(wrapper, name, steps, ranks, limit) for name in variants[place:] + variants[:place]}
            plain.append(found["plain"]["seconds"])
            for name in variants[1:]:
                ratios[name].append(found[name]["seconds"] / found["plain"]["seconds"] - 1)
        added = {name: statistics.median(values) for name, values in ratios.items()}
        rows.append(Row(wrapper, int(found["plain"]["parameters"]), statistics.median(plain), added))
    return rows


def one(wrapper: str, variant: str, steps: int, ranks: int, limit: float) -> dict[str, float]:
    """One variant on fresh ranks: its median step in seconds, and the model's parameters."""
    Console(stderr=True).print(f"{wrapper}: {variant}", style="dim")
    [found] = launch([str(RANK_PROGRAM), wrapper, str(steps)], VARIANTS[variant], ranks, limit)
    return {name: float(str(value)) for name, value in found.items()}


def table(rows: list[Row]) -> Table:
    """Milliseconds of a plain step, and what each variant adds in percent."""
    title = "one training step over Gloo on rank 0: plain, and what each mode adds (medians)"
    drawn = bench_table(title, "model", "parameters", "plain", *COMPARED, left=("model",))
    for row in rows:
        shares = [share(row, variant) for variant in COMPARED]
        drawn.add_row(row.wrapper, f"{row.parameters:,}", f"{row.plain * 1e3:,.0f} ms", *shares)
    return drawn


def share(row: Row, variant: str) -> str:
    """What a variant adds, coloured where there is a goal; "skipped" where it cannot run."""
    if variant not in row.added:
        return "skipped"
    text = f"{row.added[variant]:+.1%}"
    if variant not in GOALS:
        return text
    return f"[{'green' if row.added[variant] <= GOALS[variant] else 'red'}]{text}"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2, help="group size (default: 2)")
    parser.add_argument("--rounds", type=int, default=5, help="fresh processes per variant (default: 5)")
    parser.add_argument("--steps", type=int, default=20, help="steps that are timed per round (default: 20)")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds for one variant's ranks (default: 600)")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout instead of the table")
    options = parser.parse_args()
    rows = measure(options.rounds, options.steps, options.ranks, options.limit)
    if options.json:
        document = {"schema": "simcoll.training/1", "machine": machine(), "steps": [asdict(row) for row in rows]}
        print(json.dumps(document, indent=2))
        return
    console = Console()
    console.print(table(rows))
    for (wrapper, variant), reason in SKIPPED.items():
        console.print(f"{wrapper}, {variant}: skipped: {reason}")
    console.print(", ".join(f"{key} {value}" for key, value in machine().items()))


if __name__ == "__main__":
    main()
