"""Rows of measured steps: each is priced or refused with a reason, and the errors are what docs/plan.md says."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from benchmarks.fit_plan import Row, series_right
from simcoll.plan.layout import Layout
from simcoll.plan.measured_steps import measured_step, priced_row
from simcoll.plan.rates import fitted_shares

ROWS = Path(__file__).parents[2] / "benchmarks" / "data" / "steptimes.csv"


def rows() -> list[dict[str, str]]:
    with ROWS.open(newline="") as file:
        return list(csv.DictReader(file))


ROW = {
    "id": "1",
    "model": "LLAMA3_70B",
    "gpu": "H100 SXM 80GB",
    "gpus": "64",
    "gpus_per_node": "8",
    "framework": "Megatron-Bridge, 26.04 NeMo Container",
    "precision": "FP8",
    "sharding": "DDP + distributed optimizer",
    "dp": "2",
    "tp": "4",
    "pp": "8",
    "vp": "5",
    "cp": "1",
    "ep": "1",
    "gbs_sequences": "256",
    "mbs": "1",
    "seq_len": "8192",
    "activation_checkpointing": "",
    "compile_or_overlap": "",
}


def test_a_row_is_understood() -> None:
    step = measured_step(ROW)
    assert (step.model.name, step.gpu, step.framework.name, step.framework.release) == (
        "llama3-70b",
        "h100",
        "megatron",
        "26.04",
    )
    layout = step.layout
    assert (layout.dp_shard, layout.tp, layout.pp, layout.virtual_stages, layout.zero) == (2, 4, 8, 5, 1)
    assert (layout.dtype, layout.recompute, layout.schedule) == ("fp8", "none", "interleaved")


@pytest.mark.parametrize(
    ("changed", "name", "value"),
    [
        ({"model": "Llama-3.3-70B-Instruct"}, "model", "llama3.3-70b"),
        ({"model": "DeepSeek V3 671B (w/ MTP)"}, "model", "deepseek-v3"),
        ({"precision": "float8 rowwise"}, "dtype", "fp8-rowwise"),
        ({"sharding": "HSDP 2x1"}, "dp_replicate", 2),
        ({"sharding": "HSDP 2x1"}, "zero", 3),
        ({"sharding": "HSDP 4x64"}, "dp_replicate", 1),
        ({"sharding": "ZeRO-2"}, "zero", 2),
        ({"sharding": ""}, "zero", 1),
        ({"sharding": "null", "framework": "torchtitan"}, "zero", 3),
        ({"gpu": "8xDGXH100"}, "gpu", "h100"),
        ({"gpus": "64 (8 nodes)"}, "gpus", 64),
        ({"gbs_sequences": "1,024"}, "global_batch", 1024),
        ({"seq_len": "8k"}, "seq_len", 8192),
        ({"tp": "tp=4"}, "tp", 4),
        ({"tp": "", "dp": "", "note": "TP=4, PP=8"}, "tp", 4),
        ({"mbs": "", "grad_accum": "64"}, "micro_batch", 2),
        ({"precision": "FP8-MX"}, "dtype", "mxfp8"),
        ({"activation_checkpointing": "activations: full, every layer"}, "recompute", "full"),
        ({"activation_checkpointing": "mla_up_proj"}, "recompute", "selective"),
        ({"model": "meta-llama/Llama-3.1-70B"}, "model", "llama3.1-70b"),
        ({"model": "Nemotron 3 Nano 30B-A3B"}, "model", "nemotron-3-nano"),
        ({"model": "LLAMA3_405B"}, "model", "llama3.1-405b"),
        ({"dp": ""}, "dp_shard", 2),
        ({"gpu": "H100 SXM 96GB HBM2e 500W"}, "clock", (500 / 700) ** (1 / 3)),
        ({"gpu": "H100 SXM 80GB 700W"}, "clock", 1.0),
        ({"framework": "MLPerf v5.1: PyTorch NVIDIA Release 23.09, NCCL ?"}, "release", "5.1"),
        ({"framework": "torchtitan", "source": "benchmarks/llama3_h100_202412_torchtitan.md"}, "release", "2024.12"),
        ({"framework": "torchtitan", "source": "benchmarks/asyncTP_2025-06_torchtitan.md"}, "release", "2025.06"),
    ],
)
def test_what_a_row_says_in_words(changed: dict[str, str], name: str, value: object) -> None:
    step = measured_step({**ROW, **changed})
    found = {"model": step.model.name, "clock": step.clock, "release": step.framework.release}
    found |= {"gpu": step.gpu, "gpus": step.gpus}
    found |= {field: getattr(step.layout, field) for field in Layout.__slots__}
    assert found[name] == value


def test_the_memory_of_the_rows_that_state_it() -> None:
    stated = [row for row in rows() if row["memory_gib"]]
    off = [float(str(priced_row(row)["memory_gib"])) / float(row["memory_gib"]) - 1 for row in stated]
    assert len(off) == 4
    assert np.abs(off).max() < 0.06


def test_more_ranks_that_gather_wait_longer_for_the_slowest() -> None:
    layout = {"framework": "torchtitan", "sharding": "FSDP2", "tp": "1", "pp": "1", "vp": "1"}
    steps = []
    for count in ("8", "128", "1024"):
        size = {"gpus": count, "dp": count, "gbs_sequences": count}
        steps.append(measured_step({**ROW, **layout, **size, "model": "llama3-8b"}).plan().step)
    assert steps[0].stragglers < steps[1].stragglers < steps[2].stragglers
    assert steps[0].seconds < steps[1].seconds < steps[2].seconds


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"model": "Galactica"}, "model 'Galactica': not known, expected one of"),
        ({"gpu": "TPU v5"}, "gpu 'TPU v5': not known"),
        ({"gpus": "some"}, "gpus 'some': expected a whole number"),
        ({"gpus": ""}, "gpus is not given"),
        ({"tp": "3"}, "make 48 ranks: expected the 64 GPUs of the cluster"),
        ({"mbs": "1e400"}, "mbs '1e400': expected a whole number"),
        ({"gbs_sequences": "0"}, "gbs_sequences '0': expected a whole number of at least 1"),
    ],
)
def test_a_row_that_cannot_be_priced_is_refused_with_the_reason(changed: dict[str, str], said: str) -> None:
    found = priced_row({**ROW, **changed})
    assert found.keys() == {"id", "refused"}
    assert said in str(found["refused"])


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"seq_len": ""}, "seq_len is not given, and taken as 4,096"),
        ({"dp": "4"}, "dp 4 is taken as 2, which the 64 GPUs are divided into"),
        ({"mbs": "3"}, "mbs 3 is taken as 1, which divides the 128 sequences of a rank"),
        ({"precision": "int8"}, "precision 'int8' is not known, and taken as bf16"),
        ({"activation_checkpointing": "every 2nd"}, "activation_checkpointing 'every 2nd' is not known, and taken as"),
        ({"model": "LLAMA3_405B"}, "model 'LLAMA3_405B' is taken as llama3.1-405b"),
    ],
)
def test_what_was_assumed_of_a_row_is_a_note(changed: dict[str, str], said: str) -> None:
    notes = priced_row({**ROW, **changed})["notes"]
    assert isinstance(notes, list)
    assert [note[: len(said)] for note in notes] == [said]
    assert "notes" not in priced_row(ROW)


@pytest.mark.slow
def test_no_blank_column_has_a_row_refused() -> None:
    few = rows()[::20]
    for column in set(few[0]) - {"id", "model", "gpu", "gpus", "tp", "cp"}:
        refused = [found for row in few if "refused" in (found := priced_row({**row, column: ""}))]
        assert not refused, column


def test_a_row_with_blanks_means_what_the_framework_does() -> None:
    bare = {"id": "x", "model": "llama3-8b", "gpu": "h100", "gpus": "8", "seq_len": "8192"}
    found = priced_row(bare)
    assert found["id"] == "x"
    assert float(str(found["step_seconds"])) > 0
    assert float(str(found["memory_gib"])) > 0


@pytest.mark.slow
def test_the_errors_on_the_rows_are_those_of_the_page() -> None:
    priced = {row["id"]: priced_row(row) for row in rows()}
    refused = [one for one in priced.values() if "refused" in one]
    assert len(refused) <= len(priced) / 100
    known = [Row(row) for row in rows() if "refused" not in priced[row["id"]]]
    off = np.array([float(str(priced[row.row["id"]]["step_seconds"])) / row.seconds - 1 for row in known])
    dense = np.array([row.step.layout.dtype == "bf16" and row.step.model.experts is None for row in known])
    assert np.abs(off).mean() < 0.06
    assert np.abs(off[dense]).mean() < 0.04
    assert np.median(np.abs(off[dense])) < 0.03
    right, total = series_right(known, fitted_shares())
    assert right >= 0.95 * total > 20
