"""Counts what tensors are asked for, in Python or in C: tests assert that they are not."""

from __future__ import annotations

from typing import Any

from torch.overrides import TorchFunctionMode


class Asked(TorchFunctionMode):
    """In the block, ``count`` is how often a tensor was asked for an attribute, or a method of it called."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return function(*args, **(kwargs or {}))
