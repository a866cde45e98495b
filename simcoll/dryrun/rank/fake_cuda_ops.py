"""Operators that torch has for GPUs only, in terms of others: what synchronised batch normalisation is made of."""

from __future__ import annotations

from typing import Any

import torch

_KEY = "CompositeExplicitAutograd"


def _spread(values: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Values a channel in the shape of a batch."""
    return values.reshape(1, -1, *[1] * (like.dim() - 2))


def _but_channels(tensor: torch.Tensor) -> list[int]:
    return [dimension for dimension in range(tensor.dim()) if dimension != 1]


def _stats(batch: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    values, dimensions = batch.float(), _but_channels(batch)
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
    values = (batch.float() - _spread(mean, batch)) * _spread(invstd, batch)
    if weight is not None:
        values = values * _spread(weight, batch) + (0 if bias is None else _spread(bias, batch))
    return values.to(batch.dtype)


def _reduced(
    gradient: torch.Tensor, batch: torch.Tensor, mean: Any, invstd: Any, weight: Any, *wanted: bool
) -> tuple[torch.Tensor, ...]:
    dimensions = _but_channels(batch)
    sums = gradient.float().sum(dimensions)
    products = (gradient.float() * (batch.float() - _spread(mean, batch))).sum(dimensions)
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
    centred = (batch.float() - _spread(mean, batch)) * _spread(invstd.square() * products / total, batch)
    values = (gradient.float() - _spread(sums / total, batch) - centred) * _spread(invstd, batch)
    return (values if weight is None else values * _spread(weight, batch)).to(batch.dtype)


def have_operators() -> torch.library.Library:
    """Register them, as long as the library that is given back lives."""
    library = torch.library.Library("aten", "IMPL")
    library.impl("batch_norm_stats", _stats, _KEY)
    library.impl("batch_norm_gather_stats_with_counts", _gathered, _KEY)
    library.impl("batch_norm_elemt", _elements, _KEY)
    library.impl("batch_norm_backward_reduce", _reduced, _KEY)
    library.impl("batch_norm_backward_elemt", _backward, _KEY)
    return library
