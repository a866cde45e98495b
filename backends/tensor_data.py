"""The tensors of one call as the engine wants them: numpy arrays to read, results to write back.

Results are written into the tensors' memory itself, as Gloo does: neither autograd nor a tensor's version hears of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import torch
from torch.utils._python_dispatch import _disable_current_modes, _get_current_dispatch_mode_stack

from simcoll.semantics import Array, Outputs

T = TypeVar("T")

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""By bytes an element: what is only moved may be moved as these."""


class TensorData:
    """The buffers of one call: an engine's :class:`~simcoll.backends.tickets.Data`."""

    __slots__ = ("_inputs", "_outputs")

    def __init__(self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> None:
        self._inputs = inputs
        self._outputs = outputs

    def read(self) -> Sequence[Array]:
        """What the inputs hold now; views of the memory where numpy has the dtype."""
        return _undispatched(self._read)

    def write(self, results: Outputs) -> None:
        """Fill the outputs; None leaves one as it is."""
        _undispatched(lambda: self._write(results))

    def _read(self) -> list[Array]:
        return [_array_of(tensor) for tensor in self._inputs]

    def _write(self, results: Outputs) -> None:
        for tensor, result in zip(self._outputs, results, strict=True):
            if result is not None:
                _fill(tensor, result)


def _undispatched(work: Callable[[], T]) -> T:
    """Do what no dispatch mode of the calling thread is to see: it may be another rank's."""
    if not _get_current_dispatch_mode_stack():
        return work()
    with _disable_current_modes():
        return work()


def _array_of(tensor: torch.Tensor) -> Array:
    """A tensor's elements; of dtypes that numpy lacks, floats as float32, the rest as integers of their width."""
    plain = tensor.detach()
    if _lies_elsewhere(plain):
        plain = (plain if plain.layout is torch.strided else plain.to_dense()).cpu().resolve_conj().resolve_neg()
    try:
        array: Array = plain.numpy()
    except TypeError:
        array = (plain.float() if plain.is_floating_point() else _as_integers(plain)).numpy()
    return array


def _fill(tensor: torch.Tensor, result: Array) -> None:
    """Write a result into a tensor, whatever memory it lies in."""
    plain = tensor.detach()
    if _lies_elsewhere(plain):
        _copy(plain, result)
        return
    try:
        memory: Array = plain.numpy()
    except TypeError:
        memory = _as_integers(plain).numpy()
        if plain.is_floating_point():
            rounded = torch.from_numpy(np.ascontiguousarray(result)).to(plain.dtype)
            result = _as_integers(rounded).numpy()
    np.copyto(memory, result if result.shape == memory.shape else result.reshape(memory.shape))


def _lies_elsewhere(tensor: torch.Tensor) -> bool:
    """Whether numpy does not reach its memory, or would read it wrongly."""
    return tensor.layout is not torch.strided or tensor.device.type != "cpu" or tensor.is_conj() or tensor.is_neg()


def _as_integers(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(_INTEGERS[tensor.element_size()])


@torch.no_grad()
def _copy(tensor: torch.Tensor, result: Array) -> None:
    source = torch.from_numpy(np.ascontiguousarray(result)).reshape(tensor.shape).to(tensor.dtype)
    tensor.copy_(source.to_sparse() if tensor.is_sparse else source)
