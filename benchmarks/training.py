"""What a training step costs: plain, in simcoll's modes, and under TORCH_DISTRIBUTED_DEBUG=DETAIL, in turn in one run.

A transformer of 56 million parameters on two CPU ranks over Gloo, with DistributedDataParallel and with FSDP2, on a
tiny batch, so that communication is most of a step. One job of each variant is started, and they take turns of one
step, another first in each round. These jobs, a set, are started anew several times, because equal jobs differ. A ratio
is that of the times of all turns to the plain ones; below it stand the bounds between which 95 of 100 draws of as many
sets and rounds from these lie. CPU time is that of all threads of both ranks, which a busy machine changes less.
``again`` is a second plain job, which shows how much of a ratio is noise. The goals: a step under record and check
takes at most 3 % longer than plain, under detail 5 %. A round takes three to ten seconds: ``--wrappers`` and
``--variants`` choose, and ``--seconds`` ends a model with the rounds that it has. Measure on a machine that does
nothing else. Nothing here is a test.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import date

from rich.console import Console
from rich.table import Table

from benchmarks.overhead import VARIANTS, machine
from benchmarks.tables import bench_table
from benchmarks.turns import MEASURES, WRAPPERS, Set, add_extent, all_turns, extent_of, ratio, take_turns

SWITCHES: dict[str, dict[str, str]] = {
    "plain": {},
    "again": {},
    **{name: VARIANTS[name] for name in ("record", "check", "detail", "DETAIL")},
}
COMPARED = tuple(SWITCHES)[1:]
SKIPPED = {
    ("ddp", "DETAIL"): "DETAIL ends a DistributedDataParallel program with a segmentation fault (torch 2.13, 2.15)"
}
GOALS = {"record": 1.03, "check": 1.03, "detail": 1.05}
TOKENS = 16


@dataclass(frozen=True, slots=True)
class Row:
    """One wrapper and measure (``wall`` or ``cpu``): the seconds of a plain step, the median; and by variant the ratio
    to it and its bounds.
    """

    wrapper: str
    measure: str
    sets: int
    rounds: int
    plain: float
    ratios: dict[str, list[float]]


def measure(wrapper: str, options: argparse.Namespace) -> list[Row]:
    """The rows of a wrapper."""
    progress = Console(stderr=True)
    sets = take_turns(
        {name: SWITCHES[name] for name in ("plain", *options.variants) if (wrapper, name) not in SKIPPED},
        (wrapper, TOKENS, options.ranks),
        extent_of(options),
        lambda place, _: progress.print(place, style="dim"),
    )
    return rows_of(wrapper, sets, options.steps)


def rows_of(wrapper: str, sets: Sequence[Set], steps: int) -> list[Row]:
    """What the rounds of a wrapper show."""
    others = [name for name in sets[0][0] if name != "plain"]
    return [
        Row(
            wrapper,
            kind,
            len(sets),
            sum(map(len, sets)),
            round(statistics.median(all_turns(sets, "plain", kind)) / steps, 5),
            {name: ratio(sets, name, "plain", kind) for name in others},
        )
        for kind in MEASURES
    ]


def table(rows: list[Row]) -> Table:
    """Milliseconds of a plain step, and the ratios of each variant, below each its bounds."""
    title = "a training step over Gloo: plain, and ratios to it"
    drawn = bench_table(title, "model", "time", "rounds", "plain", *COMPARED, left=("model", "time"))
    for row in rows:
        shares = [share(row, variant) for variant in COMPARED]
        drawn.add_row(row.wrapper, row.measure, f"{row.rounds}", f"{row.plain * 1e3:,.0f} ms", *shares)
    return drawn


def share(row: Row, variant: str) -> str:
    """The ratio of a variant, coloured where there is a goal; a dash where it did not run."""
    if variant not in row.ratios:
        return "-"
    middle, low, high = row.ratios[variant]
    bounds = f"\n{low:.3f} to\n{high:.3f}"
    if variant not in GOALS:
        return f"{middle:.3f}{bounds}"
    return f"[{'green' if middle <= GOALS[variant] else 'red'}]{middle:.3f}[/]{bounds}"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wrappers", choices=WRAPPERS, nargs="+", default=WRAPPERS, help="default: both")
    parser.add_argument("--variants", choices=COMPARED, nargs="+", default=COMPARED, help="beside plain (default: all)")
    parser.add_argument("--ranks", type=int, default=2, help="group size (default: 2)")
    add_extent(parser)
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout instead of the table")
    options = parser.parse_args()
    rows = [row for wrapper in options.wrappers for row in measure(wrapper, options)]
    if options.json:
        document = {"schema": "simcoll.training/5", "date": date.today().isoformat(), "machine": machine()}
        print(json.dumps(document | {"rows": [asdict(row) for row in rows], "goals": GOALS}, indent=2))
        return
    console = Console()
    console.print(table(rows))
    for (wrapper, variant), reason in SKIPPED.items():
        console.print(f"{wrapper}, {variant}: skipped: {reason}")
    console.print(", ".join(f"{key} {value}" for key, value in machine().items()))


if __name__ == "__main__":
    main()
