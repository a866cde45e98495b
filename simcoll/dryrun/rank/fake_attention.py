"""The attention of fake GPUs: DTensors get the operator that CUDA would choose, which computes on the CPU.

The CPU's own operator has no sharding strategy in DTensor. CUDA's have one, each with gradients and collectives of its
own: flash attention takes half precision without a mask, memory-efficient attention the rest.

Flex attention is compiled for a GPU; on the CPU torch has no gradients of it, and nothing runs it below a mode. Here it
is the sum of its parts, each of which has gradients.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Mapping
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.nn import functional

_KEY = "CPU"
# Within `context_parallel` the name in torch.nn.functional is torch's wrapper, which calls this with DTensors.
_ATTENTION = functional.scaled_dot_product_attention
_HALF = (torch.float16, torch.bfloat16)
_aten = torch.ops.aten
_flex: Any = None
with contextlib.suppress(ImportError):
    # By its name: the package has the operator under the name of the module.
    _flex = importlib.import_module("torch._higher_order_ops.flex_attention")

_MOST_SCORES = 1 << 26
"""Scores of flex attention that are computed at once, each several times."""


def register_attention(library: torch.library.Library) -> None:
    """Register the operators of CUDA for the CPU; they stay as long as the library lives."""
    library.impl("_scaled_dot_product_flash_attention", _flash, _KEY)
    library.impl("_scaled_dot_product_flash_attention_backward", _flash_backward, _KEY)
    library.impl("_scaled_dot_product_efficient_attention", _efficient, _KEY)
    library.impl("_scaled_dot_product_efficient_attention_backward", _efficient_backward, _KEY)


def is_cuda_attention(func: object, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """True if a program calls for attention of DTensors on a fake GPU."""
    if func is not _ATTENTION:
        return False
    query = args[0] if args else kwargs.get("query")
    return isinstance(query, DTensor) and query.device.type == "cuda"


def attention_of_cuda(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """``scaled_dot_product_attention`` by the operator that CUDA would choose."""
    result: torch.Tensor
    if query.dtype in _HALF and attn_mask is None:
        result = _aten._scaled_dot_product_flash_attention(query, key, value, dropout_p, is_causal, scale=scale)[0]
        return result
    bias = attn_mask
    if bias is not None and bias.dtype == torch.bool:
        bias = torch.zeros_like(bias, dtype=query.dtype).masked_fill(bias.logical_not(), float("-inf"))
    if bias is not None:
        bias = bias.expand(query.size(0), query.size(1), query.size(2), key.size(2))
    needs = torch.is_grad_enabled() and any(one.requires_grad for one in (query, key, value))
    result = _aten._scaled_dot_product_efficient_attention(
        query, key, value, bias, needs, dropout_p, is_causal, scale=scale
    )[0]
    return result


def is_flex_attention(func: object) -> bool:
    """True for the operator that ``torch.nn.attention.flex_attention`` calls, in the versions of torch that have it."""
    return _flex is not None and func is _flex.flex_attention


def flex_attention_of_cuda(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *others: Any, **named: Any
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Output, logarithms of sums and maxima, as the operator gives them.

    All scores at once would not fit where there are very many: then they are not modified and masked.
    """
    if query.size(0) * query.size(1) * query.size(2) * key.size(2) <= _MOST_SCORES:
        found: tuple[torch.Tensor, torch.Tensor, torch.Tensor] = _flex.math_attention(
            query, key, value, *others, **named
        )
        return found
    heads, batch = query.size(1) // key.size(1), query.size(0)
    key, value = (one.repeat_interleave(heads, 1).expand(batch, -1, -1, -1) for one in (key, value))
    sums = query.new_zeros(query.shape[:-1], dtype=torch.float32)
    return _ATTENTION(query, key, value), sums, sums.clone()


def _forward(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bias: Any, causal: bool, scale: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and logarithms of sums, without dropout; groups of query heads may share a head of keys."""
    heads = query.size(1) // key.size(1)
    key, value = key.repeat_interleave(heads, 1), value.repeat_interleave(heads, 1)
    found: tuple[torch.Tensor, torch.Tensor] = _aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, 0.0, causal, attn_mask=bias, scale=scale
    )
    return found


def _gradients(
    gradient: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bias: Any,
    out: torch.Tensor,
    sums: torch.Tensor,
    causal: bool,
    scale: float | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    heads = query.size(1) // key.size(1)
    of_query, of_key, of_value = _aten._scaled_dot_product_flash_attention_for_cpu_backward(
        gradient,
        query,
        key.repeat_interleave(heads, 1),
        value.repeat_interleave(heads, 1),
        out,
        sums,
        0.0,
        causal,
        attn_mask=bias,
        scale=scale,
    )
    of_key, of_value = (one.unflatten(1, (-1, heads)).sum(2) for one in (of_key, of_value))
    return _laid_out(of_query, query), _laid_out(of_key, key), _laid_out(of_value, value)


def _laid_out(tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The tensor in the memory order of another one: programs view the results of CUDA's operators."""
    return torch.empty_like(like).copy_(tensor)


def _flash(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    out, sums = _forward(query, key, value, None, is_causal, scale)
    random = torch.zeros(2, dtype=torch.uint64)
    out = _laid_out(out, query)
    return out, sums, None, None, query.size(2), key.size(2), random, query.new_empty(()), query.new_empty(0)


def _flash_backward(
    grad_out: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    logsumexp: torch.Tensor,
    cum_seq_q: Any,
    cum_seq_k: Any,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    philox_seed: Any,
    philox_offset: Any,
    *,
    scale: float | None = None,
) -> tuple[torch.Tensor, ...]:
    return _gradients(grad_out, query, key, value, None, out, logsumexp, is_causal, scale)


def _efficient(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_bias: torch.Tensor | None,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> tuple[torch.Tensor, ...]:
    out, sums = _forward(query, key, value, attn_bias, is_causal, scale)
    seed = torch.zeros((), dtype=torch.long)
    return out.transpose(1, 2).contiguous().transpose(1, 2), sums, seed, seed.clone()


def _efficient_backward(
    grad_out_: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_bias: torch.Tensor | None,
    out: torch.Tensor,
    logsumexp: torch.Tensor,
    philox_seed: Any,
    philox_offset: Any,
    dropout_p: float,
    grad_input_mask: list[bool],
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    found = _gradients(grad_out_, query, key, value, attn_bias, out, logsumexp, is_causal, scale)
    of_bias = torch.zeros_like(attn_bias) if attn_bias is not None and grad_input_mask[3] else None
    return (*found, of_bias)
