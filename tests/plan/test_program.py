"""The program of a rank: groups that belong together, and the same totals as the closed form prices."""

from __future__ import annotations

from collections import Counter, defaultdict

import pytest

from simcoll.plan.layout import Layout, LayoutError
from simcoll.plan.model_files import model_named
from simcoll.plan.program import Conventions, conventions_of, mean_program, program_of
from simcoll.spec.collectives import COLLECTIVES

LAYOUTS = [
    ("llama3-8b", Layout(dp_shard=4, tp=2, pp=2, global_batch=16, zero=1)),
    ("llama3-70b", Layout(dp_shard=4, tp=2, pp=4, virtual_stages=5, schedule="interleaved", global_batch=32, zero=1)),
    ("llama3-8b", Layout(dp_shard=4, dp_replicate=2, cp=2, tp=2, global_batch=16)),
    ("qwen3-30b-a3b", Layout(dp_shard=8, ep=4, global_batch=16)),
    ("deepseek-v3", Layout(dp_shard=8, tp=2, pp=2, ep=8, global_batch=16, zero=1)),
    ("llama3-8b", Layout(dp_shard=8, global_batch=8, zero=0)),
]


@pytest.mark.parametrize(("name", "layout"), LAYOUTS)
@pytest.mark.parametrize("framework", ["torchtitan", "megatron"])
def test_all_members_of_a_group_make_its_calls(name: str, layout: Layout, framework: str) -> None:
    model, how = model_named(name), conventions_of(framework)
    made: dict[tuple[str, range, int, str], Counter[int]] = defaultdict(Counter)
    for rank in range(layout.gpus):
        for one in program_of(model, layout, how, rank):
            assert one.op in COLLECTIVES
            op = "message" if one.op in ("send", "recv") else one.op
            made[op, one.ranks, one.bytes, one.dtype][rank] += int(one.count)
    for (_, ranks, *_), counts in made.items():
        assert set(counts) == set(ranks)
        assert len(set(counts.values())) == 1


@pytest.mark.parametrize(("name", "layout"), LAYOUTS)
def test_stages_send_on_average_what_is_priced(name: str, layout: Layout) -> None:
    model, how = model_named(name), Conventions(of_torch=False)
    stages = [program_of(model, layout, how, stage * layout.stage_size) for stage in range(layout.pp)]
    for part in ("tensor", "expert", "gradients", "parameters", "context", "gather.forward", "scatter"):
        exact = sum(one.bytes * one.count for program in stages for one in program if one.part == part) / layout.pp
        mean = sum(one.bytes * one.count for one in mean_program(model, layout, how) if one.part == part)
        assert mean == pytest.approx(exact, rel=1e-6), part


def test_without_sequence_parallel_ranks_add_up_whole_activations() -> None:
    model, layout = model_named("llama3-8b"), Layout(tp=4)
    with_it = program_of(model, layout, Conventions(clips=False, splits_logits=True))
    without = program_of(model, layout, Conventions(clips=False, sequence_parallel=False))
    assert {one.op for one in without if one.part == "tensor"} == {"all_reduce"}
    assert {one.op for one in with_it if one.part == "tensor"} == {"all_gather", "reduce_scatter"}


def test_one_rank_sends_nothing() -> None:
    assert program_of(model_named("llama3-8b"), Layout(), Conventions()) == []


@pytest.mark.parametrize("rank", [-1, 4])
def test_a_rank_that_there_is_not_is_refused(rank: int) -> None:
    with pytest.raises(LayoutError, match=f"rank {rank}: expected 0 to 3"):
        program_of(model_named("llama3-8b"), Layout(dp_shard=4), Conventions(), rank)
