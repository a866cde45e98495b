"""The parameters of a model tensor by tensor, in the order in which a forward pass uses them.

A matrix's first dimension is its outputs, as torch has it: it is along this one that FSDP shards and pads. Tensor
parallel ranks split the outputs of what leads into heads and hidden layers, and the inputs of what leads out of them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simcoll.plan.model import Experts, LatentAttention, Model, StateSpace


@dataclass(frozen=True, slots=True)
class Parameter:
    """A tensor; ``split`` is the dimension that tensor parallel ranks divide, None where each has all of it."""

    shape: tuple[int, ...]
    split: int | None = None

    @property
    def elements(self) -> int:
        """Elements of the whole tensor."""
        return math.prod(self.shape)

    def local(self, tp: int) -> tuple[int, ...]:
        """The shape on one of ``tp`` tensor parallel ranks, the largest where they are not alike."""
        return tuple(math.ceil(size / tp) if place == self.split else size for place, size in enumerate(self.shape))


@dataclass(frozen=True, slots=True)
class Layer:
    """``count`` layers that are alike: their own tensors, and those of their routed experts, all experts in each."""

    count: int
    tensors: tuple[Parameter, ...]
    experts: tuple[Parameter, ...] = ()


def padded(shape: tuple[int, ...], ranks: int) -> int:
    """Elements of a tensor whose first dimension is padded to a multiple of the ranks, as FSDP2 pads it."""
    return math.ceil(shape[0] / ranks) * ranks * math.prod(shape[1:])


@functools.lru_cache(maxsize=64)
def blocks_of(model: Model) -> Mapping[str, tuple[int, tuple[Parameter, ...]]]:
    """Each part of a model: how many blocks of it there are, and the tensors of one.

    Of a mixture the router, the routed experts and what all tokens pass through are a part each.
    """
    outer = Parameter((model.vocabulary, model.hidden), 0)
    experts, space = model.experts, model.state_space
    return {
        "embedding": (1, (outer,)),
        "positions": (1, (Parameter((model.positions, model.hidden)),) if model.positions else ()),
        "attention": (model.attention, _attention(model)),
        "dense": (model.dense, _feed_forward(model, model.ffn)),
        "router": (model.moe, () if experts is None else _router(model, experts)),
        "experts": (model.moe, () if experts is None else _routed(model, experts)),
        "shared": (model.moe, () if experts is None else _shared(model, experts)),
        "mamba": (model.mamba, () if space is None else _state_space(model, space)),
        "norms": (model.attention + model.dense + model.moe + model.mamba + 1, _norm(model)),
        "head": (1, () if model.tied else (outer,)),
    }


@functools.lru_cache(maxsize=64)
def layers_of(model: Model) -> tuple[Layer, ...]:
    """The kinds of layers, in the order in which a pipeline is taken to cut them: dense ones before mixtures."""
    attention, dense, mixture, mamba = (
        _tensors(model, "norms", *parts) for parts in (("attention",), ("dense",), ("router", "shared"), ("mamba",))
    )
    experts = _tensors(model, "experts")
    if model.mamba:
        found = [Layer(model.mamba, mamba), Layer(model.attention, attention), Layer(model.dense, dense)]
        found.append(Layer(model.moe, mixture, experts))
    else:
        # Blocks of feed-forward may be fewer than those of attention.
        bare = max(0, model.attention - model.dense - model.moe)
        found = [Layer(model.dense, (*attention, *dense)), Layer(model.moe, (*attention, *mixture), experts)]
        found.append(Layer(bare, attention))
    return tuple(layer for layer in found if layer.count)


def first_of(model: Model) -> tuple[Parameter, ...]:
    """The parameters before the layers: the embedding, and learned positions."""
    return _tensors(model, "embedding", "positions")


def last_of(model: Model) -> tuple[Parameter, ...]:
    """The parameters behind the layers: the last norm, and the head where it is not the embedding."""
    return _tensors(model, "norms", "head")


def _tensors(model: Model, *parts: str) -> tuple[Parameter, ...]:
    blocks = blocks_of(model)
    return tuple(tensor for part in parts for tensor in blocks[part][1])


def _norm(model: Model) -> tuple[Parameter, ...]:
    return (Parameter((model.hidden,)),) * (2 if model.layer_norm else 1)


def _linear(outputs: int, inputs: int, split: int | None, *, bias: bool = False) -> tuple[Parameter, ...]:
    matrix = Parameter((outputs, inputs), split)
    return (matrix, Parameter((outputs,), 0 if split == 0 else None)) if bias else (matrix,)


def _attention(model: Model) -> tuple[Parameter, ...]:
    if model.latent_attention is not None:
        return _latent(model, model.latent_attention)
    inner, keys = model.heads * model.head_dim, model.kv_heads * model.head_dim
    narrow = model.biases in ("qkv", "attention", "all")
    found = [*_linear(inner, model.hidden, 0, bias=narrow), *_linear(keys, model.hidden, 0, bias=narrow)]
    found += _linear(keys, model.hidden, 0, bias=narrow)
    found += [Parameter((model.head_dim,))] * 2 if model.qk_norm else []
    found += [Parameter((model.heads,), 0)] if model.sinks else []
    found += _linear(model.hidden, inner, 1, bias=model.biases in ("attention", "all"))
    return tuple(found)


def _latent(model: Model, latent: LatentAttention) -> tuple[Parameter, ...]:
    wide, heads = model.hidden, model.heads
    found = [*_linear(latent.query_rank, wide, None), Parameter((latent.query_rank,))]
    found += _linear(heads * model.query_width, latent.query_rank, 0)
    found += [*_linear(latent.kv_rank + latent.rope, wide, None), Parameter((latent.kv_rank or latent.rope,))]
    found += _linear(heads * (latent.nope + latent.value), latent.kv_rank, 0) if latent.kv_rank else ()
    found += [Parameter((heads,), 0)] if model.sinks else []
    if latent.output_rank:
        found += _linear(latent.output_rank, heads * latent.value, 1)
        found += _linear(wide, latent.output_groups * latent.output_rank, 1)
    else:
        found += _linear(wide, heads * latent.value, 1)
    return tuple(found)


def _feed_forward(model: Model, width: int) -> tuple[Parameter, ...]:
    bias = model.biases == "all"
    into = _linear(width, model.hidden, 0, bias=bias) * (2 if model.gated else 1)
    return (*into, *_linear(model.hidden, width, 1, bias=bias))


def _router(model: Model, one: Experts) -> tuple[Parameter, ...]:
    return (*_linear(one.count, model.hidden, None, bias=one.bias), *([Parameter((one.count,))] * one.correction))


def _shared(model: Model, one: Experts) -> tuple[Parameter, ...]:
    wide, into = model.hidden, 2 if model.gated else 1
    latent = (*_linear(one.latent, wide, None), *_linear(wide, one.latent, None)) if one.latent else ()
    if not one.shared_hidden:
        return latent
    return (*latent, *_linear(one.shared_hidden, wide, 0) * into, *_linear(wide, one.shared_hidden, 1))


def _routed(model: Model, one: Experts) -> tuple[Parameter, ...]:
    wide, into = one.latent or model.hidden, 2 if model.gated else 1
    found = [Parameter((one.count, one.hidden, wide))] * into + [Parameter((one.count, wide, one.hidden))]
    if one.bias:
        found += [Parameter((one.count, one.hidden))] * into + [Parameter((one.count, wide))]
    return tuple(found)


def _state_space(model: Model, block: StateSpace) -> tuple[Parameter, ...]:
    mixed = block.inner + 2 * block.groups * block.state
    into = _linear(block.inner + mixed + block.heads, model.hidden, 0)
    convolution = (Parameter((mixed, block.convolution), 0), Parameter((mixed,), 0))
    heads = (Parameter((block.heads,), 0),) * 3
    return (*into, *convolution, *heads, Parameter((block.inner,), 0), *_linear(model.hidden, block.inner, 1))
