"""What a dry run knows of a tensor beyond what torch does, kept on its storage: views and detached tensors share it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

DEVICE = "_simcoll_device"
"""The GPU that the program put it on; None or absent for the CPU."""

UNKNOWN = "_simcoll_unknown"
"""True where its values rest on what other ranks would have sent, or on tensors without memory."""

SIZED = "_simcoll_sized"
"""The sizes that rest on unknown values: a tensor is one of these sizes, or of others that are known."""

_PLAIN = (torch.Tensor, torch.nn.Parameter)


def mark(tensor: torch.Tensor, name: str) -> Any:
    """What is known under a name; None if nothing is."""
    while inner := _inner(tensor):
        tensor = inner[0]
    return getattr(holder(tensor), name, None)


def put_mark(tensor: torch.Tensor, name: str, value: object) -> None:
    """Know a value under a name."""
    if inner := _inner(tensor):
        for one in inner:
            put_mark(one, name, value)
    else:
        setattr(holder(tensor), name, value)


def _inner(tensor: Any) -> list[torch.Tensor]:
    """The tensors that one is made of, such as a DTensor of its local one; none for a plain one."""
    made: Any = tensor
    if type(tensor) in _PLAIN or not is_traceable_wrapper_subclass(made):
        return []
    values = [getattr(made, name) for name in made.__tensor_flatten__()[0]]
    return [value for value in values if isinstance(value, torch.Tensor)]


def holder(tensor: torch.Tensor) -> Any:
    """What marks are on: the storage, or the tensor itself if it has none."""
    try:
        return tensor.untyped_storage()
    except (RuntimeError, NotImplementedError):
        return tensor


def tensors_in(values: Iterable[object]) -> Iterator[torch.Tensor]:
    """The tensors among values, and in lists and tuples among them."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from tensors_in(value)
