"""Calls that many tests of real groups make."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist


def ones(*shape: int, dtype: Any = torch.float32) -> Any:
    """A tensor of ones."""
    return torch.ones(*shape, dtype=dtype)


def summed(group: Any = None) -> float:
    """How many ranks of the group came: the sum of a one from each."""
    tensor = ones(1)
    dist.all_reduce(tensor, group=group)
    return float(tensor)
