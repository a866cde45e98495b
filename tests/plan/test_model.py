"""Parameters of a model's parts, counted by hand and against modules of torch."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from simcoll.plan.model import Experts, LatentAttention, Model, StateSpace
from simcoll.plan.model_files import known_models, model_named

SMALL = Model("small", hidden=16, vocabulary=40, attention=2, heads=4, kv_heads=2, head_dim=4, dense=2, ffn=24)


def _weights(*modules: torch.nn.Module) -> int:
    return sum(weight.numel() for module in modules for weight in module.parameters())


def test_grouped_query_attention_and_a_gated_feed_forward() -> None:
    linear = [torch.nn.Linear(16, wide, bias=False) for wide in (16, 8, 8, 16)]
    feed = [
        torch.nn.Linear(16, 24, bias=False),
        torch.nn.Linear(16, 24, bias=False),
        torch.nn.Linear(24, 16, bias=False),
    ]
    counts = SMALL.counts()
    assert counts["attention"] == 2 * _weights(*linear)
    assert counts["dense"] == 2 * _weights(*feed)
    assert counts["norms"] == 5 * 16
    assert SMALL.total == sum(counts.values())


def test_biases_and_norms_of_a_gpt_block_are_those_of_torch() -> None:
    model = replace(SMALL, kv_heads=4, gated=False, biases="all", layer_norm=True)
    block = torch.nn.TransformerEncoderLayer(16, 4, dim_feedforward=24)
    counts = model.counts()
    last_norm = 2 * 16
    assert counts["attention"] + counts["dense"] + counts["norms"] == 2 * _weights(block) + last_norm


@pytest.mark.parametrize(
    ("change", "more"),
    [
        ({"positions": 64}, 64 * 16),
        ({"tied": True}, -40 * 16),
        ({"qk_norm": True}, 2 * 2 * 4),
        ({"sinks": True}, 2 * 4),
        ({"biases": "qkv"}, 2 * (16 + 8 + 8)),
        ({"biases": "attention"}, 2 * (16 + 8 + 8 + 16)),
    ],
    ids=lambda change: next(iter(change)) if isinstance(change, dict) else "",
)
def test_what_a_part_adds(change: dict[str, object], more: int) -> None:
    assert replace(SMALL, **change).total - SMALL.total == more  # type: ignore[arg-type]


def test_a_token_uses_its_own_experts() -> None:
    model = replace(
        SMALL, dense=0, moe=2, experts=Experts(count=8, top_k=2, hidden=12, shared_hidden=6, correction=True)
    )
    counts = model.counts()
    assert counts["experts"] == 2 * 8 * 3 * 16 * 12
    assert counts["shared"] == 2 * 3 * 16 * 6
    assert counts["router"] == 2 * 8 * (16 + 1)
    assert model.total - model.active == counts["experts"] * 6 // 8


def test_experts_behind_a_latent_are_narrow() -> None:
    model = replace(SMALL, gated=False, dense=0, moe=1, experts=Experts(count=8, top_k=2, hidden=12, latent=5))
    assert model.counts()["experts"] == 8 * 2 * 5 * 12
    assert model.counts()["shared"] == 2 * 16 * 5


def test_latent_attention() -> None:
    latent = LatentAttention(query_rank=6, kv_rank=5, nope=3, rope=2, value=4)
    model = replace(SMALL, attention=1, latent_attention=latent)
    down, norms = 16 * (6 + 5 + 2), 6 + 5
    assert model.counts()["attention"] == down + norms + 6 * 4 * (3 + 2) + 5 * 4 * (3 + 4) + 4 * 4 * 16


def test_one_key_for_all_heads_and_an_output_in_groups() -> None:
    latent = LatentAttention(query_rank=6, kv_rank=0, nope=0, rope=4, value=4, output_rank=3, output_groups=2)
    model = replace(SMALL, attention=1, latent_attention=latent)
    groups = torch.nn.Conv1d(4 * 4, 2 * 3, 1, groups=2, bias=False)  # the heads of a group have a matrix of their own
    back = _weights(groups, torch.nn.Linear(2 * 3, 16, bias=False))
    assert model.counts()["attention"] == 16 * (6 + 4) + (6 + 4) + 6 * 4 * 4 + back


def test_a_state_space_block() -> None:
    model = replace(SMALL, mamba=1, state_space=StateSpace(heads=4, head_dim=8, state=6, groups=2))
    inner, mixed = 32, 32 + 2 * 2 * 6
    convolution = torch.nn.Conv1d(mixed, mixed, 4, groups=mixed)
    linear = [torch.nn.Linear(16, inner + mixed + 4, bias=False), torch.nn.Linear(inner, 16, bias=False)]
    assert model.counts()["mamba"] == _weights(convolution, *linear) + 3 * 4 + inner
    assert model.layers == 5


@pytest.mark.parametrize(
    ("name", "billions"),
    [("deepseek-v3", 37), ("deepseek-v2", 21), ("deepseek-v4-flash", 13), ("nemotron-3-super", 12), ("gpt3-175b", 175)],
)
def test_the_active_parameters_are_about_those_that_the_authors_state(name: str, billions: int) -> None:
    assert model_named(name).active == pytest.approx(billions * 1e9, rel=0.07)


def test_known_models_have_names_that_a_command_line_takes() -> None:
    for name in known_models():
        assert name == name.lower()
        assert not set(name) & set(" _")
