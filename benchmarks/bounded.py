"""What a job holds: memory and files of all ranks after so many calls, and while Works are dropped ahead of their ends.

*long*: ranks on Gloo make synchronous all_reduces of 4 bytes, one after the other. *dropped*: rank 0 runs ahead with
asynchronous all_reduces of 64 KiB, keeps no Work, and the others come only when it has made them all; plain torch holds
what is in flight as well, and is the easy case. Memory is the resident set of all ranks together in MiB, files what
their black boxes take on the disk.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.overhead import VARIANTS, launch
from benchmarks.tables import bench_table

RANK_PROGRAM = Path(__file__).with_name("bounded_rank.py")


def rows(options: argparse.Namespace) -> Iterator[tuple[str, dict[str, object]]]:
    """The variant and what rank 0 of it tells, at each stop."""
    for variant in options.variants:
        program = [str(RANK_PROGRAM), options.pattern, str(options.calls)]
        for row in launch(program, VARIANTS[variant], options.ranks, options.limit):
            yield variant, row


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pattern", choices=("long", "dropped"), default="long")
    parser.add_argument("--ranks", type=int, default=2, help="ranks on this machine (default: 2)")
    parser.add_argument("--calls", type=int, default=100_000, help="calls of each rank (default: 100,000)")
    parser.add_argument("--variants", nargs="+", choices=tuple(VARIANTS), default=("plain", "check"), metavar="NAME")
    parser.add_argument("--limit", type=float, default=3600.0, help="seconds of a variant at most (default: 3600)")
    options = parser.parse_args()
    if options.pattern == "dropped" and "DETAIL" in options.variants:
        parser.error("DETAIL waits in each call for the other ranks, so that rank 0 cannot run ahead; leave it out")
    title = f"{options.pattern}: {options.ranks} ranks on Gloo"
    table: Table = bench_table(title, "variant", "calls", "s", "MiB", "a rank, at most", "files", left=("variant",))
    for variant, row in rows(options):
        cells = [float(str(row[name])) for name in ("seconds", "all", "most", "files")]
        mib = [f"{cell / 2**20:,.1f}" for cell in cells[1:]]
        table.add_row(variant, f"{int(str(row['calls'])):,}", f"{cells[0]:,.1f}", *mib)
    Console().print(table)


if __name__ == "__main__":
    main()
