"""The memory of a plan equals what a real model in torch holds: its state after a step, and what autograd keeps."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from simcoll.plan.layout import Layout
from simcoll.plan.memory import memory_of
from simcoll.plan.model import Model

BATCH, LENGTH, HIDDEN, HEADS, FFN, VOCABULARY, LAYERS = 2, 64, 128, 4, 384, 512, 3


class Fused(torch.autograd.Function):
    """SwiGLU as compiled code has it: the product is computed in one kernel, which keeps its two inputs."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return functional.silu(gate) * up

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        return gradients[0], gradients[0]


class Block(nn.Module):
    """A layer whose norms keep their input alone, as those of GPUs do in 16 bits."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.first, self.second = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)
        self.q, self.k, self.v, self.o = (nn.Linear(HIDDEN, HIDDEN, bias=False) for _ in range(4))
        self.up, self.down = nn.Linear(HIDDEN, FFN, bias=False), nn.Linear(FFN, HIDDEN, bias=False)
        if kind != "gelu":
            self.gate = nn.Linear(HIDDEN, FFN, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        q, k, v = (one(y).unflatten(-1, (HEADS, -1)).transpose(1, 2) for one in (self.q, self.k, self.v))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(mixed.transpose(1, 2).flatten(2))
        y = self.second(x)
        if self.kind == "gelu":
            gelu: Tensor = x + self.down(functional.gelu(self.up(y)))
            return gelu
        inner = (
            Fused.apply(self.gate(y), self.up(y))
            if self.kind == "fused"
            else functional.silu(self.gate(y)) * self.up(y)
        )
        gated: Tensor = x + self.down(inner)
        return gated


class Small(nn.Module):
    def __init__(self, kind: str, *, recompute: bool = False) -> None:
        super().__init__()
        self.recompute = recompute
        self.embedding = nn.Embedding(VOCABULARY, HIDDEN)
        self.blocks = nn.ModuleList(Block(kind) for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(HIDDEN), nn.Linear(HIDDEN, VOCABULARY, bias=False)

    def layers(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recompute else block(x)
        return x

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.head(self.norm(self.layers(self.embedding(tokens))))
        return logits


def described(kind: str) -> Model:
    shape = {"hidden": HIDDEN, "vocabulary": VOCABULARY, "attention": LAYERS, "dense": LAYERS, "ffn": FFN}
    heads = {"heads": HEADS, "kv_heads": HEADS, "head_dim": HIDDEN // HEADS}
    return Model("small", **shape, **heads, gated=kind != "gelu", layer_norm=True)


@pytest.mark.parametrize("kind", ["gelu", "fused"])
def test_parameters_gradients_and_optimizer_are_those_of_torch(kind: str) -> None:
    model = Small(kind)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.zeros((1, 8), dtype=torch.long)).sum().backward()
    optimizer.step()
    found = memory_of(described(kind), Layout())
    parameters = list(model.parameters())
    moments = [one for state in optimizer.state.values() for one in state.values() if one.dim() > 0]
    assert found.parameters == sum(one.nbytes for one in parameters)
    assert found.gradients == sum(one.grad.nbytes for one in parameters if one.grad is not None)
    assert found.optimizer == sum(one.nbytes for one in moments)
    four = memory_of(described(kind), Layout(dp_shard=4))
    assert (four.parameters, four.optimizer) == (found.parameters / 4, found.optimizer / 4)


@pytest.mark.parametrize(
    ("kind", "layout"),
    [
        ("gelu", Layout(micro_batch=BATCH, seq_len=LENGTH)),
        ("fused", Layout(micro_batch=BATCH, seq_len=LENGTH)),
        ("eager", Layout(micro_batch=BATCH, seq_len=LENGTH, compile=False)),
        ("fused", Layout(micro_batch=BATCH, seq_len=LENGTH, recompute="full")),
    ],
)
def test_what_the_layers_keep_is_what_autograd_keeps(kind: str, layout: Layout) -> None:
    model = Small(kind, recompute=layout.recompute == "full").to(torch.bfloat16)
    own = {one.untyped_storage().data_ptr() for one in model.parameters()}
    kept: dict[int, Tensor] = {}

    def keep(one: Tensor) -> Tensor:
        kept[one.untyped_storage().data_ptr()] = one
        return one

    inputs = model.embedding(torch.zeros((BATCH, LENGTH), dtype=torch.long))
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda one: one):
        outputs = model.layers(inputs)
    real = sum(one.untyped_storage().nbytes() for place, one in kept.items() if place not in own)
    # Statistics of norms and of attention's rows, a few bytes a token, are not counted.
    model_of = described(kind)
    working = memory_of(model_of, layout).activations - real
    one_layer = (memory_of(model_of, Layout(micro_batch=BATCH, seq_len=LENGTH, compile=layout.compile)).activations) / (
        LAYERS + 1
    )
    passes = 2 if layout.recompute == "full" else 1
    assert outputs.shape == inputs.shape
    assert working == pytest.approx(passes * one_layer, rel=0.08)
