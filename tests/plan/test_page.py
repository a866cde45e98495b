"""The page of a plan: bars that add up to the step and to the memory, and the front of GPUs against time."""

from __future__ import annotations

import pytest

from simcoll.plan.page import pareto, plan_sheet, price_of
from simcoll.plan.planning import Plan, plan
from simcoll.reports.price_page import sheet_page


def planned(nodes: int, **options: int) -> Plan:
    given = {"seq_len": 8192, "global_batch": 256, **options}
    return plan("llama3-8b", gpu="h100", nodes=nodes, recompute="full", **given)


def test_bars_add_up_to_the_step_and_to_the_memory() -> None:
    found = planned(2, tp=2)
    sheet = plan_sheet([found], [found], 2.5)
    assert sheet.bars is not None
    assert sum(sum(bar.seconds) for bar in sheet.bars.bars) == pytest.approx(found.step_seconds, rel=0.01)
    (memory,) = sheet.further
    assert sum(sum(bar.seconds) for bar in memory.bars) == pytest.approx(found.memory_bytes, rel=0.01)
    kinds = {bar.name: max(range(3), key=lambda place: bar.seconds[place]) for bar in sheet.bars.bars}
    assert (kinds["matrix products"], kinds["tensor parallel"]) == (0, 1)


def test_the_front_has_no_plan_that_more_gpus_make_slower() -> None:
    plans = [planned(nodes) for nodes in (1, 2, 4)]
    slower = planned(8, tp=8, cp=8)
    assert slower.step_seconds > plans[2].step_seconds
    assert pareto([slower, *reversed(plans)]) == plans
    sheet = plan_sheet(plans[:1], [*plans, slower], 2.0)
    assert sheet.curve is not None
    assert len(sheet.curve.lines[0].points) == len(plans)
    assert [row[2] for row in sheet.tables[0].rows] == ["8", "16", "32"]
    assert sheet.tables[0].rows[0][-1] == f"{price_of(plans[0], 2.0):,.3g}"


def test_a_page_is_one_file_with_its_notes_and_without_a_price_that_is_not_given() -> None:
    found = planned(2)
    text = sheet_page(plan_sheet([found], [found], None))
    for word in ("Time by part", "Memory by part", "matrix products", "simcoll plan", "scaling is limited"):
        assert word in text
    assert "million tokens" not in text
    assert "The shortest step by number of GPUs" not in text
