"""The memory of one GPU at the worst moment of a step, part by part, in bytes.

What is kept for the backward pass: without recomputation, of each block the inputs of its products, of its activation
and of its norms, in 16 bits, with flash attention's output (no scores): 32 bytes per token and width of a layer with a
feed-forward of four times its width, where Korthikanti et al. (arXiv:2205.05198) count 34, two of them for dropout.
Selective recomputation of attention alone keeps as much, as flash attention computes its scores again anyway.
With full recomputation only the inputs of the layers stay, and one layer's own with their gradients. 1F1B keeps as many
micro-batches as there are stages in front of a stage; interleaved schedules keep (p - 1) / v more of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from simcoll.plan.layout import ADAPTERS, PLAIN, Layout, Training
from simcoll.plan.model import Model
from simcoll.plan.rates import USUAL, Framework
from simcoll.plan.traffic import held

GIB = float(1 << 30)

_RESERVED = 2.0 * GIB
"""CUDA's context, NCCL's channels, workspaces of products."""

_LOGIT = 4.0
"""Bytes of a logit with its gradient, in 16 bits each: the loss in 32 bits is fused."""

_PLAIN_LOGIT = 12.0
"""Bytes of a logit where the loss is not compiled: in 16 bits, in 32 bits, and the probabilities or their gradient."""

_FUSED_LOSS = "2025"
"""The release from which torchtitan compiles the loss."""

_FRAGMENTS = 0.1
"""The share of what is allocated and freed that the caching allocator cannot use."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of the first pipeline stage, which keeps the most micro-batches."""

    parameters: float
    gradients: float
    optimizer: float
    activations: float
    logits: float
    buffers: float
    other: float

    @property
    def total(self) -> float:
        """All of them."""
        return sum(self.parts().values())

    def parts(self) -> Mapping[str, float]:
        """The parts by name."""
        return {
            "parameters": self.parameters,
            "gradients": self.gradients,
            "optimizer": self.optimizer,
            "activations": self.activations,
            "logits": self.logits,
            "communication": self.buffers,
            "other": self.other,
        }


def memory_of(model: Model, layout: Layout, training: Training = PLAIN, framework: Framework = USUAL) -> Memory:
    """The memory of a rank of the first stage (of the last one for the logits, where there is one stage)."""
    torchtitan = framework.name == "torchtitan"
    own = held(model, layout)
    mine = own.common + own.experts
    shards = len(layout.shard_ranks())
    common = own.common / shards
    spread = own.experts / max(1.0, shards * layout.tp / layout.ep) if own.experts else 0.0
    sharded = common + spread
    trained = ADAPTERS if training.adapters else 1.0
    # ZeRO 3 keeps 32-bit shards and casts what it gathers; others keep 16-bit parameters and 32-bit ones beside Adam's.
    parameters = 4 * sharded if layout.zero == 3 and not training.adapters else 2 * mine
    gradients = trained * (4 * (sharded if layout.zero >= 2 else mine))
    states = trained * (8 if layout.zero == 3 else 12) * (sharded if layout.zero >= 1 else mine)
    layer = _kept(model, layout) / model.layers
    # The gradients of one layer; before its products, sequence parallel ranks gather all tokens, or pieces of them.
    copies = 1 if training.overlaps_tensor else 2
    gathered = copies * 2.0 * layout.tokens * model.hidden if layout.tp > 1 else 0.0
    working = layer + 2 * gathered
    inputs = 2.0 * layout.tokens * model.hidden / layout.tp
    layers, alive = model.layers / layout.pp, _alive(layout)
    if layout.recompute == "full":
        activations = alive * layers * inputs + layer + working
    elif layout.recompute == "selective" and torchtitan:
        activations = alive * layers * _half_kept(model, layout) + working
    else:
        activations = alive * layers * layer + working
    fused = layout.compile and not (torchtitan and framework.release and framework.release < _FUSED_LOSS)
    logits = (_LOGIT if fused else _PLAIN_LOGIT) * layout.tokens * model.vocabulary / layout.tp
    logits *= layout.pp == 1
    buffers = 0.0
    if layout.zero == 3:
        counts = model.counts()
        outer = (counts["embedding"] + counts["head"]) / layout.tp
        buffers = 3 * 2 * mine / max(1.0, layers) + 2 * outer
        if layout.pp > 1:
            # A stage keeps what it has gathered until its last pass, and adds up whole gradients in 32 bits till then.
            buffers = (2 + 4 * trained) * mine
    return Memory(
        parameters,
        gradients,
        states,
        activations,
        logits,
        buffers,
        _RESERVED + _FRAGMENTS * (activations + logits + buffers),
    )


def _alive(layout: Layout) -> float:
    """Micro-batches whose activations the first stage keeps."""
    if layout.pp == 1:
        return 1.0
    if layout.schedule == "gpipe":
        return float(layout.micro_batches)
    most = layout.pp * (
        1.0 if layout.virtual_stages == 1 else 1 + (layout.pp - 1) / (layout.pp * layout.virtual_stages)
    )
    return min(float(layout.micro_batches), most)


def _half_kept(model: Model, layout: Layout) -> float:
    """Bytes of a layer of one micro-batch where every second product is computed again, as torchtitan has it.

    The layer's input and attention's output stay, and of the products, in their order, those of queries, values, the
    gate and the way back from it (which nothing needs where code is compiled).
    """
    tp, wide, back = layout.tp, model.hidden, 0 if layout.compile else 1
    heads = model.heads * (model.query_width + model.value_width) / tp
    elements = model.attention * (wide / tp + heads + model.kv_heads * model.value_width / tp)
    elements += model.dense * (model.ffn / tp + back * wide / tp)
    if model.experts is not None:
        one = model.experts
        routed = one.top_k * ((one.latent or wide) + one.hidden) / tp
        elements += model.moe * (wide / tp + routed + one.shared_hidden / tp)
    if model.state_space is not None:
        elements += model.mamba * (wide / tp + 4 * model.state_space.inner / tp)
    return 2.0 * layout.tokens * elements / model.layers


def _kept(model: Model, layout: Layout) -> float:
    """Bytes that all layers together keep of one micro-batch for their backward pass."""
    wide, tp, matrices = model.hidden, layout.tp, 3 if model.gated else 2
    heads = model.heads * (model.query_width + model.value_width) / tp
    # A gate is kept with its activation, unless compiled code computes that again.
    kept = matrices + (model.gated and not layout.compile)
    keys = 2 * model.kv_heads * (model.query_width + model.value_width) / 2 / tp
    elements = model.attention * (2 * wide / tp + heads + keys)
    if model.dense:
        elements += model.dense * (2 * wide / tp + kept * model.ffn / tp)
    if model.experts is not None:
        one = model.experts
        routed = one.top_k * (2 * (one.latent or wide) + kept * one.hidden) / tp
        elements += model.moe * (2 * wide / tp + routed + kept * one.shared_hidden / tp)
    if model.state_space is not None:
        elements += model.mamba * (2 * wide / tp + 8 * model.state_space.inner / tp)
    return 2.0 * layout.tokens * elements
