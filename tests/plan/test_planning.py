"""`simcoll.plan`: parts that add up, and change as they must; layouts that do not fit are refused in one line."""

from __future__ import annotations

import json
from typing import Any

import pytest

from simcoll.plan.layout import Layout, LayoutError
from simcoll.plan.model_files import ModelError, model_named
from simcoll.plan.planning import Plan, plan
from simcoll.plan.work import flops_per_token, work_of


def planned(model: str = "llama3-70b", nodes: int = 8, **options: Any) -> Plan:
    return plan(model, gpu="h100", nodes=nodes, **{"seq_len": 8192, "recompute": "full", **options})


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"tp": 8},
        {"tp": 4, "pp": 4, "virtual_stages": 5, "zero": 1, "global_batch": 64},
        {"tp": 2, "cp": 4, "zero": 0},
        {"dp_shard": 8, "dp_replicate": 8},
        {"model": "qwen3-30b-a3b", "ep": 8, "zero": 1},
    ],
)
def test_the_terms_add_up_to_the_step(options: dict[str, Any]) -> None:
    found = planned(**options)
    document = found.document()
    terms = document["terms"]
    assert isinstance(terms, dict)
    assert sum(terms.values()) == pytest.approx(found.step_seconds)
    assert min(terms.values()) >= 0
    parts = found.step
    assert found.step_seconds == pytest.approx(
        parts.compute + parts.exposed + parts.bubble + parts.stragglers + parts.fixed
    )
    assert sum(found.memory.parts().values()) == pytest.approx(found.memory_bytes)
    assert 0 < found.mfu < 1
    assert json.loads(json.dumps(document))["schema"] == "simcoll.plan/1"


def test_the_count_of_flops_is_six_for_each_parameter_and_attention() -> None:
    model = model_named("llama3.1-405b")
    attention = 12 * model.attention * model.heads * model.head_dim * 8192 / 2
    products = 6 * (model.total - model.counts()["embedding"] - model.counts()["norms"])
    assert flops_per_token(model, 8192) == pytest.approx(products + attention)


def test_work_is_divided_by_tensor_parallelism_and_expert_parallelism_moves_it() -> None:
    model = model_named("llama3-8b")
    one, four = (work_of(model, Layout(tp=tp)) for tp in (1, 4))
    assert one.matmul == pytest.approx(4 * four.matmul)
    assert one.attention == pytest.approx(4 * four.attention)
    mixture = model_named("mixtral-8x7b")
    alone, spread = (work_of(mixture, Layout(ep=ep)) for ep in (1, 8))
    assert alone.experts == spread.experts
    assert alone.experts_moved > spread.experts_moved


def test_a_pipeline_has_a_bubble_that_virtual_stages_and_micro_batches_make_smaller() -> None:
    few = planned(tp=4, pp=4, zero=1, global_batch=32)
    many = planned(tp=4, pp=4, zero=1, global_batch=256)
    virtual = planned(tp=4, pp=4, zero=1, global_batch=32, virtual_stages=5)
    filled = planned(tp=4, pp=4, zero=1, global_batch=32, schedule="zero-bubble")
    assert planned(tp=4).step.bubble == 0
    assert few.step.bubble / few.step_seconds > many.step.bubble / many.step_seconds
    assert virtual.step.bubble < few.step.bubble
    assert filled.step.bubble < few.step.bubble


def test_recomputation_takes_time_and_saves_memory() -> None:
    kept, selected, again = (planned("llama3-8b", recompute=how) for how in ("none", "selective", "full"))
    assert kept.step_seconds < selected.step_seconds < again.step_seconds
    assert kept.memory.activations > selected.memory.activations > again.memory.activations


def test_sharding_more_of_the_state_takes_less_memory() -> None:
    totals = [planned("llama3-8b", zero=stage).memory_bytes for stage in (0, 1, 2, 3)]
    assert totals == sorted(totals, reverse=True)
    assert not planned("llama3.1-405b", nodes=1, zero=0).fits
    assert planned("llama3-8b", zero=3).fits


def test_more_gpus_with_the_same_work_each_take_longer() -> None:
    steps = [planned("llama3-8b", nodes=nodes, micro_batch=1).step_seconds for nodes in (1, 8, 64)]
    assert steps == sorted(steps)


def test_eight_bits_are_faster_than_sixteen_and_four_are_faster_still() -> None:
    options: dict[str, Any] = {"gpu": "b200", "nodes": 8, "seq_len": 8192, "tp": 4, "zero": 1}
    steps = [plan("llama3.1-405b", dtype=dtype, **options).step_seconds for dtype in ("bf16", "mxfp8", "nvfp4")]
    assert steps == sorted(steps, reverse=True)


def test_a_gpu_that_no_row_measures_has_the_shares_of_the_others() -> None:
    assert plan("llama3-8b", gpu="h20", nodes=1).step_seconds > plan("llama3-8b", gpu="h100", nodes=1).step_seconds
    assert plan("llama3-8b", gpu="v100", nodes=1, dtype="bf16").step_seconds > 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"tp": 3}, "--tp 3: expected a divisor of the 64 GPUs of the cluster"),
        ({"tp": 0}, "--tp 0: expected a whole number of at least 1"),
        ({"tp": 128}, "--tp 128: expected a divisor of the 64 GPUs"),
        ({"pp": 64, "virtual_stages": 4}, "--pp 64 x --virtual-stages 4: expected at most the 80 layers"),
        ({"virtual_stages": 2}, "--virtual-stages 2: expected 1 without a pipeline"),
        ({"global_batch": 65}, "--global-batch is 65, not a multiple of --micro-batch x data ranks, 64"),
        ({"seq_len": 100, "cp": 8}, "--seq-len is 100, not a multiple of --cp x --tp, 8"),
        ({"ep": 2}, "--ep 2: expected 1, because llama3-70b has no experts"),
        ({"dtype": "fp32"}, "--dtype 'fp32': expected bf16, fp8, fp8-rowwise, mxfp8, nvfp4"),
        ({"recompute": "some"}, "--recompute 'some': expected none, selective, full"),
        ({"schedule": "dualpipe"}, "--schedule 'dualpipe': expected gpipe, 1f1b, interleaved, zero-bubble"),
        ({"zero": 4}, "--zero 4: expected 0, 1, 2 or 3"),
        ({"micro_batch": 1 << 50}, "--micro-batch 1125899906842624: expected"),
        ({"sharding": 3}, "layout: unknown 'sharding', expected"),
    ],
)
def test_a_layout_that_does_not_divide_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(LayoutError) as refused:
        planned(**options)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_an_unknown_model_framework_or_gpu_is_refused_with_what_is_known() -> None:
    with pytest.raises(ModelError, match="expected llama3-70b"):
        planned("llama-3-70b")
    with pytest.raises(ValueError, match="--framework 'torchtita': expected torchtitan"):
        planned(framework="torchtita")
    with pytest.raises(ValueError, match="unknown GPU family"):
        plan("llama3-8b", gpu="h99", nodes=1)


def test_what_limits_scaling_is_named() -> None:
    few = planned(tp=4, pp=4, zero=1, global_batch=32)
    assert any("scaling is limited most by: pipeline bubble" in note for note in few.notes)
    assert any("micro-batches fill a pipeline of 4 stages" in note for note in few.notes)
    thin = planned("llama3-8b", nodes=64, seq_len=1024)
    assert any("scaling is limited most by: data parallel" in note for note in thin.notes)
    assert any("take" in note and "on the links" in note for note in thin.notes)


def test_without_compile_activations_take_more_and_the_note_says_so() -> None:
    plain, compiled = (planned("llama3-8b", recompute="none", compile=one) for one in (False, True))
    assert plain.memory.activations > compiled.memory.activations
    assert plain.step_seconds == compiled.step_seconds
    assert any("--no-compile" in note for note in plain.notes)


def test_each_stage_has_a_program() -> None:
    found = planned(tp=2, pp=4, zero=1, global_batch=64)
    first, last = found.program(0), found.program(3)
    assert {one.op for one in first} >= {"send", "recv", "all_gather", "reduce_scatter"}
    assert sum(one.bytes * one.count for one in first) != sum(one.bytes * one.count for one in last)
    assert all(rank in one.ranks for one in last for rank in [3 * found.layout.stage_size])
