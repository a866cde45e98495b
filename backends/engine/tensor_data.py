"""The tensors of one call as the engine wants them: numpy arrays to read, results to write back.

Results are written into the tensors' memory itself, as Gloo does: neither autograd nor a tensor's version hears of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.dlpack import from_dlpack, to_dlpack

from simcoll.spec.semantics import Array, Outputs

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""By bytes an element: what is only moved may be moved as these."""

_PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter)
"""Those of other types may have no memory of their own."""


class TensorData:
    """The buffers of one call: an engine's :class:`~simcoll.backends.engine.tickets.Data`."""

    __slots__ = ("_inputs", "_outputs", "about_to_run")

    def __init__(self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> None:
        self._inputs = inputs
        self._outputs = outputs
        self.about_to_run: Callable[[], object] | None = None
        """Called before the call runs."""

    def read(self) -> Sequence[Array]:
        """What the inputs hold now; views of the memory where numpy has the dtype."""
        if self.about_to_run is not None:
            self.about_to_run()
        if _modes_in_force():
            with _disable_current_modes():
                return [_array_of(tensor) for tensor in self._inputs]
        return [_array_of(tensor) for tensor in self._inputs]

    def write(self, results: Outputs) -> None:
        """Fill the outputs; None leaves one as it is."""
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
"""How many dispatch modes the calling thread is in, none of which is to see this: it may be another rank's."""


def _array_of(tensor: torch.Tensor) -> Array:
    """A tensor's elements; of dtypes that numpy lacks, floats as float32, the rest as integers of their width."""
    array = _plain_memory(tensor)
    if array is not None:
        return array
    plain = tensor.detach()
    if _lies_elsewhere(plain):
        plain = (plain if plain.layout is torch.strided else plain.to_dense()).cpu().resolve_conj().resolve_neg()
    array = _plain_memory(plain)
    if array is None:
        array = _shared(plain.float() if plain.is_floating_point() else _as_integers(plain))
    return array


def _fill(tensor: torch.Tensor, result: Array) -> None:
    """Write a result into a tensor, whatever memory it lies in."""
    memory = _plain_memory(tensor)
    if memory is None:
        plain = tensor.detach()
        if _lies_elsewhere(plain):
            _copy(tensor, result)
            return
        memory = _plain_memory(plain)
        if memory is None:
            memory = _shared(_as_integers(plain))
            if plain.is_floating_point():
                rounded = torch.from_numpy(np.ascontiguousarray(result)).to(plain.dtype)
                result = _as_integers(rounded).numpy()
    memory[...] = result if result.shape == memory.shape else result.reshape(memory.shape)


def _plain_memory(tensor: torch.Tensor) -> Array | None:
    """The memory of a tensor that numpy can share, or None: it is on a device, is sparse, looks other than it lies, has
    a dtype of torch's own, or takes part in autograd.
    """
    try:
        return _shared(tensor)
    except (RuntimeError, TypeError, BufferError):
        return None


def _shared(tensor: torch.Tensor) -> Array:
    """An array on a tensor's memory. ``numpy()`` alone makes a storage one that cannot be resized, and
    FullyShardedDataParallel resizes those that it communicates: so it is called on a storage of its own.
    """
    if type(tensor) in _PLAIN_TYPES and not tensor.is_conj() and not tensor.is_neg():
        tensor = from_dlpack(to_dlpack(tensor))
    array: Array = tensor.numpy()
    return array


def _lies_elsewhere(tensor: torch.Tensor) -> bool:
    """Whether numpy does not reach its memory, or would read it wrongly."""
    return tensor.layout is not torch.strided or tensor.device.type != "cpu" or tensor.is_conj() or tensor.is_neg()


def _as_integers(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(_INTEGERS[tensor.element_size()])


@torch.no_grad()
def _copy(tensor: torch.Tensor, result: Array) -> None:
    source = torch.from_numpy(np.ascontiguousarray(result)).reshape(tensor.shape).to(tensor.dtype)
    tensor.copy_(source.to_sparse(tensor.sparse_dim()) if tensor.is_sparse else source)
