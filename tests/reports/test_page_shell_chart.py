"""The data of a page's chart: what is packed comes out again, and too much of it becomes coarser."""

from __future__ import annotations

import json
import zlib
from base64 import b64decode
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simcoll.reports import page_shell
from simcoll.reports.page_shell import chart_data, script_json
from simcoll.verifier.postmortem import judge
from simcoll.verifier.views.chart import Chart
from simcoll.verifier.views.requested import charted
from tests.reports.pages import mismatched

TYPES = {"u8": np.uint8, "u16": np.uint16, "u32": np.uint32, "f64": np.float64}


def chart_of(ranks: int, records: int) -> tuple[Chart, list[Any]]:
    traces = mismatched(ranks, records)
    report = judge(traces)
    chart = charted(report, traces)
    assert chart is not None
    return chart, list(report.findings)


def unpacked(packed: dict[str, str]) -> Any:
    return np.frombuffer(zlib.decompress(b64decode(packed["data"])), TYPES[packed["type"]])


def test_what_is_packed_comes_out_again() -> None:
    chart, findings = chart_of(4, 30)
    text, notes = chart_data(chart, findings)
    data = json.loads(text)
    assert notes == ()
    assert data["ranks"] == [0, 1, 2, 3]
    assert np.array_equal(unpacked(data["cells"]).reshape(-1, 30), chart.cells)
    assert unpacked(data["rows"]).tolist() == chart.rows.tolist()
    assert unpacked(data["span"]).tolist() == [1] * 30
    assert unpacked(data["time"])[:2] == pytest.approx([0, 0.001])
    assert np.array_equal(unpacked(data["late"]).reshape(4, 30), chart.late)
    assert [data["texts"][said] for _, _, said, _ in data["kinds"]] == [kind.said for kind in chart.kinds]
    assert data["findings"] == [finding.code for finding in findings]


def test_too_much_of_it_becomes_coarser_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    chart, findings = chart_of(6, 900)
    whole, _ = chart_data(chart, findings)
    monkeypatch.setattr(page_shell, "MOST_CHARACTERS", len(whole) // 2)
    text, notes = chart_data(chart, findings)
    data = json.loads(text)
    assert len(text) < len(whole)
    assert data["late"] is None
    assert notes
    assert unpacked(data["span"]).sum() == data["total"] == 900


def test_what_cannot_become_smaller_is_given_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_shell, "MOST_CHARACTERS", 1)
    chart, findings = chart_of(2, 3)
    assert json.loads(chart_data(chart, findings)[0])["total"] >= 3


@given(st.text())
def test_no_text_ends_a_script(text: str) -> None:
    said = script_json([text])
    assert said.isascii()
    assert not set("<>&") & set(said)
    assert json.loads(said) == [text]
