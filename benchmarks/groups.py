"""What a group costs: to make it, and its first call, plain and in simcoll's modes, in turn in one run.

Two ranks on Gloo make groups of both, one after the other, and call all_reduce twice in each. A cell is the median over
the rounds of rank 0's mean over the groups, in milliseconds; the second call is the easy case of the first.
"""

from __future__ import annotations

import argparse
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.overhead import VARIANTS, launch
from benchmarks.tables import bench_table

RANK_PROGRAM = Path(__file__).with_name("groups_rank.py")
SHOWN = ("plain", "record", "check", "detail", "DETAIL")
PARTS = ("made", "first call", "second call")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=100, help="groups of a rank (default: 100)")
    parser.add_argument("--rounds", type=int, default=3, help="fresh processes per variant (default: 3)")
    options = parser.parse_args()
    samples: dict[tuple[str, str], list[float]] = defaultdict(list)
    for turn in range(options.rounds):
        for variant in SHOWN[turn % len(SHOWN) :] + SHOWN[: turn % len(SHOWN)]:
            program = [str(RANK_PROGRAM), str(options.groups)]
            for row in launch(program, VARIANTS[variant], 2, 600):
                samples[variant, str(row["part"])].append(float(str(row["seconds"])))
    Console().print(table(options.groups, samples))


def table(groups: int, samples: Mapping[tuple[str, str], Sequence[float]]) -> Table:
    """Milliseconds of each part, by variant (medians)."""
    drawn = bench_table(f"ms a group, {groups} groups of 2 ranks on Gloo", "variant", *PARTS, left=("variant",))
    for variant in SHOWN:
        drawn.add_row(variant, *(f"{statistics.median(samples[variant, part]) * 1e3:,.1f}" for part in PARTS))
    return drawn


if __name__ == "__main__":
    main()
