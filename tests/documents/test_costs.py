"""docs/costs.md is what the stored results give, and its tables fit a terminal."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest

from benchmarks import growth
from benchmarks.tables import WIDTH

DOCS = Path(__file__).parents[2] / "docs"
PAGE = runpy.run_path(str(DOCS / "cost_page.py"))


def test_page_is_generated() -> None:
    page = PAGE["page"]()
    assert (DOCS / "costs.md").read_text(encoding="utf-8") == page, "run: python docs/cost_page.py"
    assert all(len(line) <= WIDTH for line in page.splitlines() if line.startswith("|"))


def test_stored_results_say_when_and_where() -> None:
    document = json.loads(growth.TARGET.read_text(encoding="utf-8"))
    assert document["schema"] == growth.SCHEMA
    assert document["date"]
    assert {"python", "machine", "cores"} <= document["machine"].keys()
    assert all(len(one["points"]) >= 3 for one in document["series"])


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
def test_a_power_is_found(power: float) -> None:
    sizes = (512, 2_048, 8_192)
    factor, found = PAGE["fitted"](sizes, [0.002 * size**power for size in sizes])
    assert found == pytest.approx(power)
    assert factor == pytest.approx(0.002)
