"""Checks before a call that the tensors of a rank's own call lie in memory as its backend needs them.

:func:`layout_fault` looks at shapes and strides, which are the same whenever a call of equal
:attr:`~simcoll.recorder.arguments.Arguments.key` is made. :class:`Separate` compares addresses, at each call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import sub

import torch

from simcoll.backends.base import Backend, MemoryUse
from simcoll.core.strides import is_dense, long_dimensions
from simcoll.recorder.arguments import Arguments
from simcoll.spec.table import IN_PLACE
from simcoll.verifier.agreement.own_memory import MemoryFault

_NO_USE = MemoryUse()
_PLAIN = (torch.Tensor, torch.nn.Parameter)


def layout_fault(arguments: Arguments, backend: Backend | None, group_size: int) -> MemoryFault | None:
    """The error that the backend makes because of a tensor's strides, or None; a group of one rank moves nothing."""
    use = _use(arguments, backend)
    refused = any(not _is_regular(tensor) for role in use.refuses for tensor in arguments.tensors.get(role, ()))
    if group_size < 2 or refused:
        return None
    for role in use.solid:
        for place, tensor in enumerate(arguments.tensors.get(role, ())):
            if _in_memory(tensor) and not _is_solid(tensor):
                return _gaps(arguments, role, place, tensor, backend)
    return _other_order(arguments, backend) if use.in_order else None


def _use(arguments: Arguments, backend: Backend | None) -> MemoryUse:
    known = backend is not None and arguments.device == "cpu"
    return backend.memory.get(arguments.method.name, _NO_USE) if known and backend is not None else _NO_USE


def _is_regular(tensor: torch.Tensor) -> bool:
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return tensor.is_contiguous() or (
        tensor.dim() in formats and tensor.is_contiguous(memory_format=formats[tensor.dim()])
    )


def _in_memory(tensor: torch.Tensor) -> bool:
    return type(tensor) in _PLAIN and tensor.layout is torch.strided and tensor.numel() > 0


def _is_solid(tensor: torch.Tensor) -> bool:
    return tensor.is_contiguous() or is_dense(tensor.shape, tensor.stride())


def _gaps(arguments: Arguments, role: str, place: int, tensor: torch.Tensor, backend: Backend | None) -> MemoryFault:
    # More elements than there is memory from the first to the last.
    beyond = tensor.numel() > 1 + sum(
        stride * (size - 1) for stride, size in long_dimensions(tensor.shape, tensor.stride())
    )
    writes = role != "inputs"
    if beyond:
        what = "repeats elements (it is expanded, or its strides overlap)"
        harm = "reads and writes memory behind it" if writes else "reads memory behind it"
    else:
        what = "has gaps in memory"
        harm = "writes between its elements, and not to all of them" if writes else "sends what lies between"
    name = backend.name.capitalize() if backend is not None else "the backend"
    reason = (
        f"{_named(arguments, role, place)} of shape {list(tensor.shape)} and strides {list(tensor.stride())} {what}; "
        f"{name}'s {arguments.spec.name} takes it for contiguous and {harm}: give it a contiguous copy"
    )
    return MemoryFault("SC601", reason, beyond and writes)


def _named(arguments: Arguments, role: str, place: int) -> str:
    name = "the tensor" if role in IN_PLACE else f"the {role.removesuffix('s')}"
    return f"{name} {place}" if len(arguments.tensors[role]) > 1 else name


def _other_order(arguments: Arguments, backend: Backend | None) -> MemoryFault | None:
    """Inputs and outputs that lie in different orders: the values arrive permuted."""
    outputs, inputs = (
        [one for one in arguments.tensors.get(role, ()) if _in_memory(one)] for role in ("outputs", "inputs")
    )
    if not any(_permuted(one, other) for one in inputs for other in outputs):
        return None
    name = backend.name.capitalize() if backend is not None else "the backend"
    reason = (
        f"inputs and outputs lie in different memory orders (strides {list(inputs[0].stride())} and "
        f"{list(outputs[0].stride())}), and {name}'s {arguments.spec.name} copies in the order of memory, so that "
        "values arrive permuted: make both contiguous"
    )
    return MemoryFault("SC601", reason)


def _permuted(one: torch.Tensor, other: torch.Tensor) -> bool:
    """True if two tensors of one form lie in different orders; a flat tensor may be meant for memory in any order."""
    if one.dim() != other.dim():
        return False
    common = [place for place in range(one.dim()) if one.shape[place] > 1 and other.shape[place] > 1]
    return _outermost_first(one, common) != _outermost_first(other, common)


def _outermost_first(tensor: torch.Tensor, dimensions: Sequence[int]) -> list[int]:
    return sorted(dimensions, key=tensor.stride, reverse=True)


_Span = tuple[int, int, int]
"""The first byte, the byte behind the last, the tensor's number."""


@dataclass(frozen=True, slots=True)
class Separate:
    """The tensors of a call that must not share memory, told by their sizes in bytes; 1 for one that is not contiguous.

    ``inputs`` are those that must not share memory with an output; ``own`` is the one of the list that may. ``even`` is
    the size of all of several outputs, 0 where they differ.
    """

    outputs: tuple[int, ...]
    inputs: tuple[int, ...]
    own: int
    even: int

    @classmethod
    def of(cls, arguments: Arguments, backend: Backend | None, group_rank: int) -> Separate | None:
        """The tensors of a call that must be compared each time; None where none can share memory with another."""
        use = _use(arguments, backend)
        outputs = _sizes(arguments.tensors.get("outputs", ()))
        inputs = _sizes(arguments.tensors.get("inputs", ())) if use.apart else ()
        if len(outputs) + len(inputs) < 2:
            return None
        even = outputs[0] if len(outputs) > 1 and len(set(outputs)) == 1 else 0
        return cls(outputs, inputs, group_rank if use.own_part else -1, even)

    def fault(self, arguments: Arguments) -> MemoryFault | None:
        """The two tensors of this call that share memory, or None."""
        outputs = arguments.tensors.get("outputs", ())
        inputs = arguments.tensors.get("inputs", ()) if self.inputs else ()
        try:
            if self.even and not inputs:
                # The usual list, quickly.
                addresses = sorted([tensor.data_ptr() for tensor in outputs])
                if min(map(sub, addresses[1:], addresses)) >= self.even:
                    return None
            spans = _without_padding(_spans(outputs, self.outputs, 0))
            reads = _spans(inputs, self.inputs, len(outputs))
        except RuntimeError:
            # Tensors without memory have no address.
            return None
        if (pair := _shared(spans)) is not None:
            reason = f"outputs {pair[0]} and {pair[1]} share memory: what one rank sends overwrites another's part"
        elif reads and (pair := self._read_late(spans, reads)) is not None:
            if _is_uniform(inputs[pair[1] - len(outputs)]):
                return None
            name = "the input" if len(inputs) == 1 else f"input {pair[1] - len(outputs)}"
            reason = f"the output shares memory with {name}, which is read after the output is begun"
        else:
            return None
        plain = all(type(tensor) in _PLAIN for tensor in (*outputs, *inputs))
        return MemoryFault("SC503", reason) if plain else None

    def _read_late(self, spans: Sequence[_Span], reads: Sequence[_Span]) -> tuple[int, int] | None:
        for span in reads:
            if span[2] - len(self.outputs) != self.own and (pair := _shared([*spans, span])) is not None:
                return pair
        return None


def _is_uniform(tensor: torch.Tensor) -> bool:
    """True if all elements are one value: such a call only tries whether the backend has it, and order is no matter."""
    with torch.no_grad():
        return bool((tensor == tensor.flatten()[0]).all())


def _sizes(tensors: Sequence[torch.Tensor]) -> tuple[int, ...]:
    if any(tensor.layout is not torch.strided for tensor in tensors):
        return ()
    return tuple((tensor.nbytes if tensor.is_contiguous() else 1) if tensor.numel() else 0 for tensor in tensors)


def _spans(tensors: Sequence[torch.Tensor], sizes: Sequence[int], first: int) -> list[_Span]:
    addresses = [tensor.data_ptr() for tensor in tensors]
    return [
        (one, one + size, number)
        for number, (one, size) in enumerate(zip(addresses, sizes, strict=True), first)
        if size and one
    ]


def _without_padding(spans: list[_Span]) -> list[_Span]:
    """The spans without a tensor that ends the list several times: behind others it takes what nobody needs."""
    repeated = next((place for place, span in enumerate(reversed(spans)) if span[:2] != spans[-1][:2]), 0)
    return spans[: len(spans) - repeated + 1] if repeated else spans


def _shared(spans: Sequence[_Span]) -> tuple[int, int] | None:
    """The numbers, in order, of two tensors of which one begins within the other."""
    end, last = 0, -1
    for begin, until, number in sorted(spans):
        if begin < end:
            return (last, number) if last < number else (number, last)
        if until > end:
            end, last = until, number
    return None
