"""What benchmarks print fits a terminal of 80 columns: no heading is cut, and no cell."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console
from rich.table import Table

from benchmarks import cliffs, estimate, groups, overhead, page, price, time_estimators, training, value_faults, verify
from benchmarks.costs import Cost
from benchmarks.tables import WIDTH
from benchmarks.verify_boxes import Job

COST = Cost(1234.56, 2345.67, 12_345.6, False, 0, b"")
BOX = verify.Row("pipeline", 100_000, 20_000, ("SC201", "SC304"), COST, COST, COST)
ODD = Job("unlike lines", 100_000, 20_000, 100_000)
CLIFFS = [
    cliffs.Pair(ODD, other, 123.456, 123.456, whole)
    for other, whole in ((replace(ODD, records=40_000), False), (Job("correct", 100_000, 20_000), True))
]
PRICED = price.Row("pipeline", 100_000, 10_000, 1_662_500, COST, COST)
CALL = overhead.Row(1024, 1 << 20, "async held", dict.fromkeys(overhead.VARIANTS, 0.00123456))
STEP = training.Row("fsdp2", "wall", 6, 1000, 12.3456, {key: [12.345, 12.345, 12.345] for key in training.COMPARED})
SAMPLES = {(variant, part): [12.3456] for variant in groups.SHOWN for part in groups.PARTS}
SPEED = estimate.Speed(100_000, "rail-optimised", 123.45, 123.456, 123_456.0, 123.45, 12_345.0)
PAGE = page.Row("timeline 100,000 x 20", 12_345_678, 123.45, 12_345.0, 12_345.0)
ROUND = value_faults.Round(value_faults.WORKLOADS[0].name, value_faults.FAULTS[0], 1, True, True, True, "")

TABLES = {
    "black boxes": [verify.boxes_table([BOX])],
    "dumps": [verify.dumps_table([BOX])],
    "price": [price.table_of([PRICED])],
    "cliffs": [cliffs.table(CLIFFS)],
    "overhead": [overhead.table([CALL])],
    "training": [training.table([STEP, replace(STEP, ratios={})])],
    "groups": [groups.table(100, SAMPLES)],
    "estimate": [*estimate.tables([estimate.Accuracy("PyTorch's model", 1.234, 1.234, 1.234)], [SPEED])],
    "page": [page.table([PAGE])],
    "faults": [value_faults.table([ROUND])],
}


@pytest.mark.parametrize("name", TABLES)
def test_a_table_fits_a_narrow_terminal(name):
    for table in TABLES[name]:
        narrow, wide = drawn(table, WIDTH), drawn(table, 10 * WIDTH)
        assert narrow == wide
        assert "…" not in narrow
        assert max(map(len, narrow.splitlines())) <= WIDTH
        for column in table.columns:
            assert all(word in narrow for word in str(column.header).split())


def drawn(table: Table, width: int) -> str:
    """A table as a terminal of that width shows it, without the spaces at the ends of lines."""
    out = io.StringIO()
    Console(file=out, width=width, no_color=True).print(table)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def test_the_table_of_time_estimators_fits():
    row = {
        "op": "reduce_scatter",
        "calls": 1000,
        "bytes": 1 << 30,
        "simcoll_us": 123_456.7,
        "nccl_us": 12_345.6,
        "measured_us": 123_456.7,
        "why": "",
    }
    shown = time_estimators.table([row])
    assert max(map(len, shown.splitlines())) <= WIDTH
    assert all(heading in shown for heading in time_estimators.HEADINGS)
