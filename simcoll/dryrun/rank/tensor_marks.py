"""Marks that a dry run puts on a tensor's storage, so that views and detached tensors share them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

DEVICE = "_simcoll_device"
"""The fake GPU that the tensor is on; None or absent for the CPU."""

TAINTED = "_simcoll_tainted"
"""True where its values depend on what other ranks would have sent, or on tensors without memory."""

TAINTED_SIZES = "_simcoll_tainted_sizes"
"""Sizes that depend on tainted values; the tensor may have one of these, or only sizes that are known."""

_PLAIN = (torch.Tensor, torch.nn.Parameter)


def mark(tensor: torch.Tensor, name: str) -> Any:
    """The mark with this name; None where there is none."""
    while inner := _inner(tensor):
        tensor = inner[0]
    return getattr(holder(tensor), name, None)


def put_mark(tensor: torch.Tensor, name: str, value: object) -> None:
    """Set the mark with this name."""
    if inner := _inner(tensor):
        for one in inner:
            put_mark(one, name, value)
    else:
        setattr(holder(tensor), name, value)


def _inner(tensor: Any) -> list[torch.Tensor]:
    """The inner tensors of a wrapper, such as a DTensor's local one; none for a plain tensor."""
    made: Any = tensor
    if type(tensor) in _PLAIN or not is_traceable_wrapper_subclass(made):
        return []
    values = [getattr(made, name) for name in made.__tensor_flatten__()[0]]
    return [value for value in values if isinstance(value, torch.Tensor)]


def holder(tensor: torch.Tensor) -> Any:
    """The object that holds the marks: the storage, or the tensor itself if it has none."""
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
