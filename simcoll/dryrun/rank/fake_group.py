"""A torch.distributed backend for one rank without peers: every call completes at once.

A dry run uses it in place of whatever backend the program asks for. The result is the one that the rank would get if
all ranks had its inputs; tensors without memory (fake ones, those on ``meta``) stay unchanged. A receive from any
source receives from the other ranks in turn, first from those that are known to have sent it one more message.

:func:`symmetric_outputs` computes such a result without the other ranks' parts. It follows from the properties of the
call's row (whether it reduces, which buffers it divides, where its root is) and equals the row's ``result`` where all
ranks make the same call with the same inputs, up to the rounding of sums. Where ranks would send different amounts,
this rank's data is repeated or truncated to the size that it expects. Unknown values are zero: the content of a
message, and a part from another root. A broadcast leaves the buffer unchanged. A call that every backend refuses is
refused: one whose splits do not add up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch._C._distributed_c10d import Store, Work
from torch._subclasses.fake_tensor import FakeTensor
from torch.futures import Future

from simcoll.backends.base import Backend
from simcoll.backends.engine.python_group import PythonProcessGroup, add_c10d_methods
from simcoll.backends.engine.tensor_data import TensorData
from simcoll.dryrun.rank.fake_device import real_devices
from simcoll.recorder.arguments import Arguments, arguments
from simcoll.recorder.dynamo import leave_class_uncompiled
from simcoll.spec import flows
from simcoll.spec.call import ANY_SOURCE, Buffer, Call
from simcoll.spec.collectives import spec_of
from simcoll.spec.semantics import Array, Outputs
from simcoll.spec.table import Kind, Rooted


def _power(piece: Array, ranks: int) -> Array:
    return piece if piece.dtype.kind == "b" else piece**ranks


def _times(piece: Array, ranks: int) -> Array:
    return piece if piece.dtype.kind == "b" else piece * np.asarray(ranks).astype(piece.dtype)


_REPEATED: MappingProxyType[str, Callable[[Array, int], Array]] = MappingProxyType(
    {
        "sum": _times,
        "premul_sum": _times,
        "product": _power,
        "bxor": lambda piece, ranks: piece if ranks % 2 else piece ^ piece,
    }
)
"""Reductions of equal values; any other reduction returns the value itself."""


def symmetric_outputs(call: Call, group_rank: int, size: int, inputs: Sequence[Array]) -> Outputs:
    """The outputs of ``call`` on a rank in a group of ``size`` ranks with equal ``inputs``; None leaves one unchanged.

    A repeated input may have two dimensions, repetitions by elements, whatever the shape of the buffer.

    Raises ValueError for a call whose buffers and splits contradict each other.
    """
    spec = spec_of(call)
    undefined = spec.rooted is Rooted.TO_ROOT and call.root != group_rank
    if spec.kind is Kind.SYNCHRONISATION or undefined or not call.outputs:
        return [None] * len(call.outputs)
    if spec.kind is Kind.POINT_TO_POINT or not inputs:
        return [np.zeros(buffer.shape, np.float32) for buffer in call.outputs]
    if call.coalesced:
        one = [array.reshape(-1) for array in inputs]
        return [
            _filled(_piece(call, group_rank, size, one[place % len(one)]), [buffer])[0]
            for place, buffer in enumerate(call.outputs)
        ]
    row = inputs[0].reshape(-1) if len(inputs) == 1 else np.concatenate([array.reshape(-1) for array in inputs])
    return _filled(_piece(call, group_rank, size, row), call.outputs)


def is_from_other_root(call: Call, group_rank: int) -> bool:
    """True if the call brings this rank the data of another rank, the root."""
    return spec_of(call).rooted is Rooted.FROM_ROOT and call.root != group_rank


def _piece(call: Call, group_rank: int, size: int, row: Array) -> Array:
    """The contribution of each rank to this rank's outputs."""
    spec = spec_of(call)
    if "inputs" in spec.divided:
        row = _part(call, group_rank, size, row)
    if spec.kind is Kind.REDUCTION:
        with np.errstate(all="ignore"):
            repeated = _REPEATED.get(call.reduce_op or "sum")
            row = row if repeated is None else repeated(row, size)
    return row


def _part(call: Call, group_rank: int, size: int, row: Array) -> Array:
    if call.coalesced:
        return np.split(row, size)[group_rank]
    sizes = flows.parts(call.inputs, call.input_splits, size)
    begin = sum(sizes[peer] for peer in range(group_rank))
    return row[begin : begin + sizes[group_rank]]


def _filled(piece: Array, buffers: Sequence[Buffer]) -> Outputs:
    """The buffers in order, filled with the piece, repeated as needed.

    Where each buffer holds whole pieces, those are views, so that a large gather takes no memory of its own.
    """
    length, sizes = len(piece), [buffer.elements for buffer in buffers]
    if length and all(size % length == 0 for size in sizes):
        return [
            piece.reshape(buffer.shape) if size == length else np.broadcast_to(piece, (size // length, length))
            for buffer, size in zip(buffers, sizes, strict=True)
        ]
    ends = np.cumsum(sizes)
    row = piece if length == ends[-1] else np.resize(piece, int(ends[-1]))
    return [part.reshape(buffer.shape) for part, buffer in zip(np.split(row, ends), buffers, strict=False)]


_NO_TIMEOUT = timedelta(0)
_ANY_BACKEND = Backend("fake")
"""A backend that refuses what all of them refuse."""

Taint = Callable[[Sequence[torch.Tensor]], object]
"""Called with the tensors that hold what other ranks would have sent."""

Answer = Callable[[Call, Sequence[torch.Tensor], Sequence[Array]], "tuple[Outputs, bool] | None"]
"""The outputs of a call with these inputs and whether they are certain; None where they are unknown."""


HasNext = Callable[[Call, int], bool]
"""Whether a peer (group rank) is known to have sent a message for a receive that this rank has not taken yet."""


class FakeProcessGroup(PythonProcessGroup):
    """One rank's side of a group of ``size`` ranks, the others of which do not exist.

    ``taint`` is called with every result that is not certain; ``answer`` may know some results. While ``blank()`` is
    true, data from another root is zero. ``has_next`` knows the messages for receives from any source.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        *,
        store: Store,
        name: str = "fake",
        taint: Taint = lambda tensors: None,
        blank: Callable[[], bool] = lambda: False,
        answer: Answer = lambda call, tensors, inputs: None,
        has_next: HasNext = lambda call, peer: False,
    ) -> None:
        super().__init__(rank, size, store, name)
        self._taint = taint
        self._blank = blank
        self._known = answer
        self._has_next = has_next
        self._any_source_receives = 0

    def shutdown(self) -> None:
        """Do nothing: there is nothing to shut down."""

    abort = shutdown

    def _start_coalescing(self, device: torch.device) -> None:
        """Do nothing: each call of a coalesced section completes by itself."""

    def _end_coalescing(self, device: torch.device) -> Work:
        return FakeWork([], self._rank)

    start_coalescing, end_coalescing = _start_coalescing, _end_coalescing

    def monitored_barrier(self, *args: Any, **kwargs: Any) -> None:
        """Return at once: no rank is missing."""

    def _collective(self, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Work:
        found = arguments(name, args, kwargs)
        both = found.tensors.get("inout")
        outputs = found.tensors.get("outputs", []) if both is None else both
        call = found.call()
        if (fault := _ANY_BACKEND.refusal(call, self._rank, self.size())) is not None:
            raise RuntimeError(fault)
        source = self._source_of(call)
        # A receive from any source brings what the sender that it is told has sent.
        self._answer(found, replace(call, peer=source) if call.peer == ANY_SOURCE else call, both, outputs)
        # Like a real Work, it keeps the call's tensors, so that their memory is not reused meanwhile.
        kept = [tensor for tensors in found.tensors.values() for tensor in tensors]
        return FakeWork(outputs, source, kept)

    def _answer(
        self, found: Arguments, call: Call, both: Sequence[torch.Tensor] | None, outputs: Sequence[torch.Tensor]
    ) -> None:
        inputs = found.tensors.get("inputs", []) if both is None else both
        if not (inputs or outputs) or not all(map(_has_memory, (*inputs, *outputs))):
            return
        data = TensorData(inputs, outputs)
        with real_devices():
            given = () if self._blank() and is_from_other_root(call, self._rank) else data.read()
            known = self._known(call, inputs, given)
            if not outputs:
                return
            results, certain = known or (symmetric_outputs(call, self._rank, self.size(), given), False)
            data.write(results)
        if self.size() > 1 and not certain:
            self._taint([tensor for tensor, result in zip(outputs, results, strict=True) if result is not None])

    def _source_of(self, call: Call) -> int:
        """The group rank that a receive gets its message from: the named peer, or else each other rank in turn.

        Those come first that are known to have sent one more.
        """
        if call.peer is not None and call.peer >= 0:
            return call.peer
        others = [rank for rank in range(self.size()) if rank != self._rank]
        if call.peer is None or not others:
            return self._rank
        place = self._any_source_receives % len(others)
        self._any_source_receives += 1
        turn = [*others[place:], *others[:place]]
        return next((rank for rank in turn if self._has_next(call, rank)), turn[0])


class FakeWork(Work):
    """The Work of a call that has completed."""

    def __init__(self, results: Sequence[torch.Tensor], source: int, kept: Sequence[torch.Tensor] = ()) -> None:
        super().__init__()
        self._results, self._kept = list(results), kept
        self._source = source

    def wait(self, timeout: timedelta = _NO_TIMEOUT) -> bool:
        """Return at once."""
        return True

    def is_completed(self) -> bool:
        """True: the call has completed."""
        return True

    is_success = is_completed

    def exception(self) -> None:
        """None: the call succeeded."""

    def synchronize(self) -> None:
        """Return at once."""

    def result(self) -> list[torch.Tensor]:
        """The call's outputs."""
        return self._results

    def source_rank(self) -> int:
        """The group rank that a receive got its message from."""
        return self._source

    _source_rank = source_rank

    def get_future(self) -> Future[Any]:
        """A completed future."""
        future: Future[Any] = Future()
        future.set_result(self._results)
        return future


def _has_memory(tensor: torch.Tensor) -> bool:
    return not isinstance(tensor, FakeTensor) and tensor.device.type != "meta"


add_c10d_methods(FakeProcessGroup)
leave_class_uncompiled(FakeWork)
