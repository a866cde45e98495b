"""CPU implementations of the operators of synchronised batch normalisation, which torch has for GPUs only."""

from __future__ import annotations

from typing import Any

import torch

_KEY = "CompositeExplicitAutograd"


def _per_channel(values: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Values per channel, reshaped to broadcast over a batch."""
    return values.reshape(1, -1, *[1] * (like.dim() - 2))


def _dims_but_channels(tensor: torch.Tensor) -> list[int]:
    return [dimension for dimension in range(tensor.dim()) if dimension != 1]


def _stats(batch: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    values, dimensions = batch.float(), _dims_but_channels(batch)
    return values.mean(dimensions), (values.var(dimensions, unbiased=False) + eps).rsqrt()


def _gathered(
    batch: torch.Tensor,
    mean: torch.Tensor,
    invstd: torch.Tensor,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    momentum: float,
    eps: float,
    counts: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    weights = (counts / counts.sum()).reshape(-1, 1).to(mean.dtype)
    total = (mean * weights).sum(0)
    var = ((invstd.pow(-2) - eps + (mean - total).square()) * weights).sum(0)
    for running, value in ((running_mean, total), (running_var, var)):
        if running is not None:
            running.mul_(1 - momentum).add_(value.to(running.dtype) * momentum)
    return total, (var + eps).rsqrt()


def _elements(batch: torch.Tensor, weight: Any, bias: Any, mean: Any, invstd: Any, eps: float) -> torch.Tensor:
    values = (batch.float() - _per_channel(mean, batch)) * _per_channel(invstd, batch)
    if weight is not None:
        values = values * _per_channel(weight, batch) + (0 if bias is None else _per_channel(bias, batch))
    return values.to(batch.dtype)


def _reduced(
    gradient: torch.Tensor, batch: torch.Tensor, mean: Any, invstd: Any, weight: Any, *wanted: bool
) -> tuple[torch.Tensor, ...]:
    dimensions = _dims_but_channels(batch)
    sums = gradient.float().sum(dimensions)
    products = (gradient.float() * (batch.float() - _per_channel(mean, batch))).sum(dimensions)
    dtype = batch.dtype if weight is None else weight.dtype
    return sums, products, (products * invstd).to(dtype), sums.to(dtype)


def _backward(
    gradient: torch.Tensor,
    batch: torch.Tensor,
    mean: Any,
    invstd: Any,
    weight: Any,
    sums: torch.Tensor,
    products: torch.Tensor,
    counts: torch.Tensor,
) -> torch.Tensor:
    total = counts.sum()
    centred = (batch.float() - _per_channel(mean, batch)) * _per_channel(invstd.square() * products / total, batch)
    values = (gradient.float() - _per_channel(sums / total, batch) - centred) * _per_channel(invstd, batch)
    return (values if weight is None else values * _per_channel(weight, batch)).to(batch.dtype)


def register_operators() -> torch.library.Library:
    """Register the operators; they stay as long as the returned library lives."""
    library = torch.library.Library("aten", "IMPL")
    library.impl("batch_norm_stats", _stats, _KEY)
    library.impl("batch_norm_gather_stats_with_counts", _gathered, _KEY)
    library.impl("batch_norm_elemt", _elements, _KEY)
    library.impl("batch_norm_backward_reduce", _reduced, _KEY)
    library.impl("batch_norm_backward_elemt", _backward, _KEY)
    return library
