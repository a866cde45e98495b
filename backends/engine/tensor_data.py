"""The tensors of one call as numpy arrays for the engine: inputs to read, results to write back.

Results are written directly into the tensors' memory, as Gloo does: neither autograd nor a tensor's version notices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.dlpack import from_dlpack, to_dlpack

from simcoll.spec.semantics import Array, Outputs

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integers by element size: data that is only moved may be moved as these."""

_PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter)
"""Tensors of other types may have no memory of their own."""


class TensorData:
    """The buffers of one call: an engine's :class:`~simcoll.backends.engine.tickets.Data`."""

    __slots__ = ("_inputs", "_outputs", "about_to_run")

    def __init__(self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> None:
        self._inputs = inputs
        self._outputs = outputs
        self.about_to_run: Callable[[], object] | None = None
        """Called before the call runs."""

    def read(self) -> Sequence[Array]:
        """The inputs' current values; views of the memory where numpy has the dtype."""
        if self.about_to_run is not None:
            self.about_to_run()
        if _modes_in_force():
            with _disable_current_modes():
                return [_array_of(tensor) for tensor in self._inputs]
        return [_array_of(tensor) for tensor in self._inputs]

    def write(self, results: Outputs) -> None:
        """Fill the outputs; None leaves one unchanged."""
        if _modes_in_force():
            with _disable_current_modes():
                self._write(results)
        else:
            self._write(results)

    def _write(self, results: Outputs) -> None:
        for tensor, result in zip(self._outputs, results, strict=True):
            if result is not None:
                _fill(tensor, result)


_modes_in_force: Callable[[], int] = torch._C._len_torch_dispatch_stack
"""The number of dispatch modes of the calling thread. None of them may see this: the tensors may be another rank's."""


def _array_of(tensor: torch.Tensor) -> Array:
    """A tensor's elements; of dtypes that numpy lacks, floats are float32, others integers of their width."""
    array = _plain_memory(tensor)
    if array is not None:
        return array
    plain = tensor.detach()
    if _needs_copy(plain):
        plain = (plain if plain.layout is torch.strided else plain.to_dense()).cpu().resolve_conj().resolve_neg()
    array = _plain_memory(plain)
    if array is None:
        array = _shared(plain.float() if plain.is_floating_point() else _as_integers(plain))
    return array


def _fill(tensor: torch.Tensor, result: Array) -> None:
    """Write a result into a tensor, whatever its memory."""
    memory = _plain_memory(tensor)
    if memory is None:
        plain = tensor.detach()
        if _needs_copy(plain):
            _copy(tensor, result)
            return
        memory = _plain_memory(plain)
        if memory is None:
            memory = _shared(_as_integers(plain))
            if plain.is_floating_point():
                rounded = torch.from_numpy(np.ascontiguousarray(result)).to(plain.dtype)
                result = _as_integers(rounded).numpy()
    if result.shape != memory.shape and memory.flags.c_contiguous:
        memory = memory.reshape(result.shape)  # a view; the result's reshape may be a copy
    memory[...] = result.reshape(memory.shape)


def _plain_memory(tensor: torch.Tensor) -> Array | None:
    """The memory of a tensor if numpy can share it. None otherwise: it is on a device, sparse, a lazy conjugate or
    negative, has a dtype that numpy lacks, or takes part in autograd.
    """
    try:
        return _shared(tensor)
    except (RuntimeError, TypeError, BufferError):
        return None


def _shared(tensor: torch.Tensor) -> Array:
    """An array on a tensor's memory. ``numpy()`` makes a storage non-resizable, and FullyShardedDataParallel resizes
    the storages that it communicates, so that it is called on a separate storage of the same memory.
    """
    if type(tensor) in _PLAIN_TYPES and not tensor.is_conj() and not tensor.is_neg():
        tensor = from_dlpack(to_dlpack(tensor))
    array: Array = tensor.numpy()
    return array


def _needs_copy(tensor: torch.Tensor) -> bool:
    """True if numpy cannot access the memory, or would read it wrongly."""
    return tensor.layout is not torch.strided or tensor.device.type != "cpu" or tensor.is_conj() or tensor.is_neg()


def _as_integers(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(_INTEGERS[tensor.element_size()])


@torch.no_grad()
def _copy(tensor: torch.Tensor, result: Array) -> None:
    source = torch.from_numpy(np.ascontiguousarray(result)).reshape(tensor.shape).to(tensor.dtype)
    tensor.copy_(source.to_sparse(tensor.sparse_dim()) if tensor.is_sparse else source)
