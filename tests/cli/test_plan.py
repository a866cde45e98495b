"""``simcoll plan``: what it shows, its documents, and a file of rows; bad input gets one line and exit code 2."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from simcoll.cli import main
from simcoll.plan.page import plan_sheet
from simcoll.plan.planning import Plan
from simcoll.reports.price_page import Sheet

LAYOUT = ["--model", "llama3-8b", "--gpu", "h100", "--nodes", "2", "--seq-len", "8192", "--recompute", "full"]
COLUMNS = "id,model,gpu,gpus,seq_len,dp,mbs,gbs_sequences,sharding,precision"


def test_a_plan_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *LAYOUT, "--plain", "--gpu-hour", "2"]) == 0
    said = capsys.readouterr().out
    for word in (
        "llama3-8b on 16 GPUs (h100), dp16 mb1 ZeRO3, 16 x 8,192 tokens, bf16",
        "MFU",
        "matrix products",
        "of 80 GiB: fits",
        "price of 1M",
    ):
        assert word in said


def test_a_plan_is_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *LAYOUT, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "simcoll.plan/1"
    assert found["fits"] is True
    parts = found["compute_seconds"] + found["exposed_seconds"] + found["bubble_seconds"] + found["terms"]["fixed"]
    assert found["step_seconds"] == pytest.approx(parts)
    tokens = 16 * 8192 / found["step_seconds"] / 16
    assert found["tokens_per_second_per_gpu"] == pytest.approx(tokens)
    assert "price_per_million_tokens" not in found


def test_a_search_is_one_document_with_its_best_plans(capsys: pytest.CaptureFixture[str]) -> None:
    search = ["plan", *LAYOUT, "--global-batch", "64", "--search", "--gpu-hour", "2.5"]
    assert main([*search, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "simcoll.plan-search/1"
    steps = [one["step_seconds"] for one in found["plans"]]
    assert steps == sorted(steps)
    best = found["plans"][0]
    assert found["price_per_million_tokens"] == pytest.approx(2.5 / 3600 / best["tokens_per_second_per_gpu"] * 1e6)
    assert main([*search, "--plain"]) == 0
    assert f"the best of {found['layouts']} layouts, of which {found['fitting']} fit" in capsys.readouterr().out


def test_rows_are_priced_line_by_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        "a,LLAMA3_8B,H100 SXM 80GB,8,8192,8,1,16,FSDP,bf16",
        "b,Galactica,H100,8,8192,8,1,16,FSDP,bf16",
        "c,LLAMA3_8B,H100,8,8192,,,,,",
        "d,LLAMA3_8B",
    ]
    path = tmp_path / "rows.csv"
    path.write_text("\n".join([COLUMNS, *rows]), encoding="utf-8-sig")
    assert main(["plan", "--csv", str(path), "--json"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["id"] for one in found] == ["a", "b", "c", "d"]
    assert [sorted(one) for one in found] == [
        ["id", "memory_gib", "step_seconds"],
        ["id", "refused"],
        ["id", "memory_gib", "step_seconds"],
        ["id", "refused"],
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "no model is given"),
        (["--model", "llama3-71b"], "expected llama3-70b"),
        (["--model", "llama3-8b", "--tp", "3"], "--tp 3"),
        (["--model", "llama3-8b", "--gpu-hour", "-1"], "--gpu-hour -1: expected a price above 0"),
        (["--model", "llama3-8b", "--gpu-hour", "nan"], "--gpu-hour nan"),
        (["--model", "llama3.1-405b", "--search"], "fits: the smallest takes"),
        (["--csv", "none.csv"], "cannot read none.csv"),
        (["--csv", "."], "cannot read"),
    ],
)
def test_bad_input_is_refused_in_one_line(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["plan", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert said in captured.err
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"a,b\n1,2\n", "has no column id; expected"),
        (b"id;model;gpu;gpus\n", "has no column id (it has semicolons: separate columns by commas); expected"),
        (b"id\tmodel\tgpu\tgpus\n", "has no column id (it has tabs: separate columns by commas); expected"),
        (b"\xff\xfe\x00", "UTF-16 text, expected UTF-8"),
        (b"id,model,gpu,gpus,tp,tp\n", "column 'tp' is there twice"),
        (b"id,model,gpu,gpus\n\0", "line 2: a NUL byte"),
        (b"id,model,gpu,gpus\n\xe4", "line 2: byte 0xe4 is no UTF-8 text"),
        (b'id,model,gpu,gpus\n"' + b"x\n" * 70_000, "line 2: no CSV: field larger than field limit"),
        (b"id,model,gpu,gpus\n" + b"," * (1 << 21), "line 2: a row of more than 1 MiB"),
        (b"", "has no column id; expected"),
    ],
)
def test_a_file_that_has_no_rows_is_refused(
    content: bytes, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(content)
    assert main(["plan", "--csv", str(path)]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_a_page_has_other_numbers_of_gpus(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "plan.html"
    assert main(["plan", *LAYOUT, "--html", str(page), "--gpu-hour", "2", "--plain"]) == 0
    text = page.read_text(encoding="utf-8")
    for word in ("Time by part", "Memory by part", "The shortest step by number of GPUs", "1M tokens"):
        assert word in text
    assert re.findall(r"step: ([0-9]+),", text) == ["8", "16", "32", "64", "128"]
    assert main(["plan", *LAYOUT, "--html", str(tmp_path / "none" / "plan.html")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert main(["plan", "--csv", str(page), "--html", str(page)]) == 2
    assert "leave it out with --csv" in capsys.readouterr().err


def test_numbers_of_gpus_are_compared_for_one_batch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    drawn: list[Plan] = []

    def sheet(plans: Sequence[Plan], sizes: Sequence[Plan], gpu_hour: float | None) -> Sheet:
        drawn.extend(sizes)
        return plan_sheet(plans, sizes, gpu_hour)

    monkeypatch.setattr("simcoll.plan.page.plan_sheet", sheet)
    assert main(["plan", *LAYOUT, "--tp", "2", "--html", str(tmp_path / "plan.html"), "--plain"]) == 0
    assert {found.layout.global_batch for found in drawn} == {8}
    assert {8, 16} < {found.layout.gpus for found in drawn}


def test_the_document_has_the_program_of_each_stage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *LAYOUT, "--pp", "2", "--zero", "1", "--json"]) == 0
    stages = json.loads(capsys.readouterr().out)["program"]
    assert [one["stage"] for one in stages] == [0, 1]
    calls = stages[1]["collectives"]
    assert {"op", "group", "ranks", "bytes", "dtype", "count", "part"} == calls[0].keys()
    assert {"first": 8, "stride": 1, "count": 8} in [one["ranks"] for one in calls]
