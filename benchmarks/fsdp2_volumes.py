"""What FSDP2 moves in a step, reckoned from the shapes of a model's parameters alone; nothing here asks simcoll.

The rules are those of torch 2.13 (torch/distributed/fsdp/_fully_shard): each parameter's first dimension is padded to a
multiple of the ranks; a wrapped module is gathered forward and again backward, the root forward alone, for it is not
resharded after its forward; gradients are reduced and scattered once; `clip_grad_norm_` adds up one norm a parameter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

Shape = tuple[int, ...]

_NORM_BYTES = 4


@dataclass(frozen=True, slots=True)
class Sharded:
    """A model: the parameters of each wrapped module, and those that are left to the root."""

    modules: Sequence[Sequence[Shape]]
    root: Sequence[Shape]

    @property
    def shapes(self) -> list[Shape]:
        """All parameters."""
        return [shape for module in (*self.modules, self.root) for shape in module]


def llama(layers: int, dim: int, heads: int, shared: int, hidden: int, vocabulary: int) -> Sharded:
    """The parameters of a Llama-style model: ``shared`` of ``heads`` heads have keys and values of their own."""
    narrow = dim // heads * shared
    attention = [(dim, dim), (narrow, dim), (narrow, dim), (dim, dim)]
    block = [(dim,), (dim,), *attention, (hidden, dim), (hidden, dim), (dim, hidden)]
    return Sharded([block] * layers, [(vocabulary, dim), (dim,), (vocabulary, dim)])


def padded(shape: Shape, ranks: int) -> int:
    """Elements of a parameter whose first dimension is padded to a multiple of the ranks."""
    return math.ceil(shape[0] / ranks) * ranks * math.prod(shape[1:])


def volumes(model: Sharded, ranks: int, *, gathered: int = 2, reduced: int = 4) -> dict[str, int]:
    """Bytes of a step by op, as nccl-tests counts: the whole of what is gathered, and of what is scattered.

    ``gathered`` and ``reduced`` are the bytes of an element.
    """
    modules = sum(padded(shape, ranks) for module in model.modules for shape in module)
    root = sum(padded(shape, ranks) for shape in model.root)
    return {
        "all_gather": gathered * (2 * modules + root),
        "reduce_scatter": reduced * (modules + root),
        "all_reduce": _NORM_BYTES * len(model.shapes),
    }
