"""Writes docs/spec-table.md anew from the table: ``python docs/spec_table.py``."""

from __future__ import annotations

from pathlib import Path

from simcoll.spec.collectives import COLLECTIVES
from simcoll.spec.table import CollectiveSpec

TARGET = Path(__file__).with_name("spec-table.md")

_HEAD = """# The table of collectives

Written by `python docs/spec_table.py` from `simcoll/spec/collectives.py`; a test compares the two. *Agrees on* lists
what every rank must state alike; *flows* says whether the ranks also prove who sends how much to whom. *Traffic* is
nccl-tests' bus-bandwidth factor for 2, 4 and 8 ranks.
"""

_COLUMNS = (
    "collective",
    "kind",
    "agrees on",
    "flows",
    "torch.distributed",
    "c10d method (OpType)",
    "profiling names",
    "schedules",
    "traffic",
)


def page() -> str:
    """The whole page."""
    rule = ["---"] * len(_COLUMNS)
    table = [_COLUMNS, rule, *map(_cells, COLLECTIVES.values())]
    return f"{_HEAD}\n" + "".join(f"| {' | '.join(row)} |\n" for row in table)


def _cells(spec: CollectiveSpec) -> list[str]:
    methods = [f"`{method.name}` ({method.op_type.replace('_', chr(92) + '_')})" for method in spec.methods]
    return [
        f"`{spec.name}`",
        spec.kind.value,
        ", ".join(sorted(spec.agree)),
        _flows(spec),
        _names(spec.functions),
        ", ".join(methods),
        _names(spec.profiling),
        ", ".join(spec.schedules),
        ", ".join(f"{spec.traffic(ranks):g}" for ranks in (2, 4, 8)),
    ]


def _flows(spec: CollectiveSpec) -> str:
    if spec.law.__name__ == "counted":
        return "implied by the count"
    return "where uneven" if "count" in spec.agree else "always"


def _names(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names)


if __name__ == "__main__":
    TARGET.write_text(page(), encoding="utf-8")
