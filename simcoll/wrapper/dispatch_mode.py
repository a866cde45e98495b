"""Intercepts all c10d calls in torch's dispatcher before they reach a backend.

Python's torch.distributed, functional collectives and C++ (DistributedDataParallel's reducer) all pass it. A call that
is taken is not made: its caller gets a Work that has ended, but for the action of its ``wait``.

:class:`Functional` states for each operator of functional collectives the c10d method that it stands for, and the
source of its result.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch._C._distributed_c10d import ProcessGroup, PythonCallbackWork
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed import distributed_c10d
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from simcoll.core.patches import Patches
from simcoll.recorder.session import unrecorded_where
from simcoll.spec.collectives import METHODS
from simcoll.spec.table import CollectiveSpec, Kind
from simcoll.wrapper.process_group import RecordedProcessGroup

Tensors = list[torch.Tensor]
Results = Callable[[Tensors, Mapping[str, Any], int, int], Any]
"""From inputs, arguments, the group's size and this rank's place in it: tensors of the result's shapes."""


@dataclass(frozen=True, slots=True)
class Functional:
    """One operator of the namespace ``_c10d_functional``."""

    method: str
    results: Results


def _copy(inputs: Tensors, given: Mapping[str, Any], size: int, rank: int) -> torch.Tensor:
    return inputs[0].clone()


def _copies(inputs: Tensors, given: Mapping[str, Any], size: int, rank: int) -> Tensors:
    return [tensor.clone() for tensor in inputs]


def _same(inputs: Tensors, given: Mapping[str, Any], size: int, rank: int) -> torch.Tensor:
    return inputs[0]


def _all_same(inputs: Tensors, given: Mapping[str, Any], size: int, rank: int) -> Tensors:
    return inputs


def _gathered(inputs: Tensors, given: Mapping[str, Any], size: int, rank: int) -> torch.Tensor:
    return torch.cat([inputs[0]] * size)


def _all_gathered(inputs: Tensors, given: Mapping[str, Any], size: int, rank: int) -> Tensors:
    return [torch.cat([tensor] * size) for tensor in inputs]


def _part(inputs: Tensors, given: Mapping[str, Any], size: int, rank: int) -> torch.Tensor:
    return inputs[0].chunk(size)[rank].clone()


def _parts(inputs: Tensors, given: Mapping[str, Any], size: int, rank: int) -> Tensors:
    return [tensor.chunk(size)[rank].clone() for tensor in inputs]


def _out(inputs: Tensors, given: Mapping[str, Any], size: int, rank: int) -> torch.Tensor:
    out: torch.Tensor = given["out"]
    return out.zero_()


def _exchanged(inputs: Tensors, given: Mapping[str, Any], size: int, rank: int) -> torch.Tensor:
    return inputs[0].new_zeros((sum(given["output_split_sizes"]), *inputs[0].shape[1:]))


FUNCTIONAL: Mapping[str, Functional] = {
    "all_reduce": Functional("allreduce", _copy),
    "all_reduce_": Functional("allreduce", _same),
    "all_reduce_coalesced": Functional("allreduce_coalesced", _copies),
    "all_reduce_coalesced_": Functional("allreduce_coalesced", _all_same),
    "all_gather_into_tensor": Functional("_allgather_base", _gathered),
    "all_gather_into_tensor_out": Functional("_allgather_base", _out),
    "all_gather_into_tensor_coalesced": Functional("allgather_into_tensor_coalesced", _all_gathered),
    "reduce_scatter_tensor": Functional("_reduce_scatter_base", _part),
    "reduce_scatter_tensor_out": Functional("_reduce_scatter_base", _out),
    "reduce_scatter_tensor_coalesced": Functional("reduce_scatter_tensor_coalesced", _parts),
    "all_to_all_single": Functional("alltoall_base", _exchanged),
    "broadcast": Functional("broadcast", _copy),
    "broadcast_": Functional("broadcast", _same),
    "isend": Functional("send", _same),
    "irecv": Functional("recv", _same),
}
"""By name, all but ``wait_tensor`` and ``batch_p2p_ops``, which stand for no one call."""


Wait = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Dispatched:
    """One call: its row, its size (bytes) as nccl-tests has it, the global ranks that take part, the group's name.

    The sender of a message is the first of the ranks.
    """

    op: str
    bytes: int
    members: tuple[int, ...]
    group: str


Take = Callable[[Dispatched], Wait]
_METHODS = {"recv_any_source_": "recv_anysource"}


@contextmanager
def dispatched(take: Take, begin_section: Callable[[], None], end_section: Callable[[], Wait]) -> Iterator[None]:
    """Give every c10d call of the block to ``take``; calls between the two others are launched together.

    It is the block of the thread that enters it, and of the backward passes that this thread runs.
    """
    with _sections_taken, unrecorded_where(_is_taken), _Mode(take, begin_section, end_section):
        yield


class _Mode(TorchDispatchMode):
    """Answers the operators of c10d in place of the backends."""

    def __init__(self, take: Take, begin_section: Callable[[], None], end_section: Callable[[], Wait]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._take, self.begin_section, self.end_section = take, begin_section, end_section
        # By storage, as in c10d: the awaited tensor may be a view. It is kept, so that no other takes its number.
        self._pending: dict[int, tuple[torch.UntypedStorage, Wait]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(answers_itself(kind) for kind in types):
            return NotImplemented
        if func.namespace not in ("c10d", "_c10d_functional"):
            return func(*args, **(kwargs or {}))
        schema = func._schema
        given = dict(zip((argument.name for argument in schema.arguments), args, strict=False)) | (kwargs or {})
        name = schema.name.partition("::")[2]
        if name != "wait_tensor" and not {"process_group", "group_name"} & given.keys():
            # It does not communicate.
            return func(*args, **(kwargs or {}))
        if func.namespace == "_c10d_functional":
            return self._functional(name, given)
        return self._collective(name, given, len(schema.returns))

    def _collective(self, name: str, given: dict[str, Any], returns: int) -> Any:
        """An operator that hands out a Work: ``allreduce_`` is the c10d method ``allreduce``."""
        method = _METHODS.get(name, name.rstrip("_"))
        if method not in METHODS:
            raise NotImplementedError(f"the estimator does not know c10d::{name}, and does not send it; leave it out")
        inputs, outputs = _tensors(given, "input", "tensor"), _tensors(given, "output")
        group = given["process_group"]
        group = group if isinstance(group, ProcessGroup) else ProcessGroup.unbox(group)
        wait = self._take(_call(METHODS[method][0], inputs, outputs, group, given.get("dst", given.get("src"))))
        _fill(inputs, outputs)
        if returns == 0:
            wait()
            return None
        work = _work(wait, outputs or inputs).boxed()
        return work if returns == 1 else (next(iter(given.values())), work)

    def _functional(self, name: str, given: dict[str, Any]) -> Any:
        """An operator that returns its result, which ``wait_tensor`` waits for."""
        if name == "wait_tensor":
            _, wait = self._pending.pop(_storage(given["tensor"])._cdata, (None, _nothing))
            wait()
            return given["tensor"]
        group = distributed_c10d._resolve_process_group(given["group_name"])
        if name == "batch_p2p_ops":
            return self._batch(given, group)
        row = FUNCTIONAL.get(name)
        if row is None:
            raise NotImplementedError(f"the estimator does not know _c10d_functional::{name}, and does not send it")
        inputs = _flat(given.get("input", given.get("inputs", given.get("tensor"))))
        results = row.results(inputs, given, group.size(), group.rank())
        peer = given.get("dst", given.get("src"))
        wait = self._take(_call(METHODS[row.method][0], inputs, _flat(results), group, peer))
        self._follow(_flat(results), wait)
        return results

    def _batch(self, given: dict[str, Any], group: ProcessGroup) -> list[torch.Tensor]:
        self.begin_section()
        for op, peer, tensor in zip(given["op_list"], given["peer_list"], given["tensors"], strict=True):
            self._take(_call(METHODS[op.removeprefix("i")][0], [tensor], [], group, peer))
        tensors: list[torch.Tensor] = given["tensors"]
        self._follow(tensors, self.end_section())
        return tensors

    def _follow(self, tensors: list[torch.Tensor], wait: Wait) -> None:
        for tensor in tensors:
            storage = _storage(tensor)
            self._pending[storage._cdata] = storage, wait


def _storage(tensor: torch.Tensor) -> torch.UntypedStorage:
    return tensor.untyped_storage()


def _nothing() -> None:
    """The wait for a call that needs none."""


def answers_itself(kind: type) -> bool:
    """True for a kind of tensor that is asked before a block is: a DTensor, or a functional collective's result.

    It waits and communicates as it has to, with plain tensors, and the block sees that.
    """
    plain: bool = kind.__torch_dispatch__ == torch.Tensor.__torch_dispatch__  # type: ignore[attr-defined]
    return not plain and not issubclass(kind, FakeTensor)


def _call(
    spec: CollectiveSpec, inputs: list[torch.Tensor], outputs: list[torch.Tensor], group: ProcessGroup, peer: int | None
) -> Dispatched:
    members = _members(group)
    size = max(_bytes(inputs), _bytes(outputs))
    if spec.rooted is not None and len(spec.methods[0].buffers) == 2 and not (inputs and outputs):
        # A rank that is not the root of a gather or scatter holds its own part only.
        size *= len(members)
    if spec.kind is Kind.POINT_TO_POINT:
        # The sender that a receive from any source meets is not known: the neighbour stands for it.
        rank = group.rank()
        other = (rank + 1) % len(members) if peer is None else peer
        ends = (other, rank) if spec.measured == "outputs" else (rank, other)
        members = tuple(dict.fromkeys(members[end] for end in ends))
    return Dispatched(spec.name, 0 if spec.measured is None else size, members, group.group_name or "")


def _members(group: ProcessGroup) -> tuple[int, ...]:
    known = distributed_c10d._world.pg_group_ranks.get(group)
    return tuple(sorted(known, key=known.__getitem__)) if known else tuple(range(group.size()))


def _bytes(tensors: Sequence[torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _tensors(given: dict[str, Any], *prefixes: str) -> list[torch.Tensor]:
    """The tensors of the arguments whose names begin so."""
    return [tensor for name, value in given.items() if name.startswith(prefixes) for tensor in _flat(value)]


def _flat(value: object) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [tensor for item in value for tensor in _flat(item)] if isinstance(value, (list, tuple)) else []


def _fill(inputs: list[torch.Tensor], outputs: list[torch.Tensor]) -> None:
    """Fill the outputs with this rank's own data in place of the others', so that programs can read them."""
    for output in outputs:
        for source in inputs[:1]:
            if source.numel() and output.dtype == source.dtype and output.numel() % source.numel() == 0:
                copies = output.numel() // source.numel()
                output.copy_(source.reshape(-1).repeat(copies).reshape(output.shape))


def _work(wait: Wait, result: list[torch.Tensor]) -> PythonCallbackWork:
    def callback(timeout: object) -> bool:
        wait()
        return True

    work = PythonCallbackWork(callback)
    # A future that C++ waits for may not call Python; its calls count at the end of the block.
    work.get_future().set_result(result)
    return work


def _current_mode() -> _Mode | None:
    """The innermost block that this thread is in, or whose backward pass it runs."""
    modes = (mode for mode in reversed(_get_current_dispatch_mode_stack()) if isinstance(mode, _Mode))
    return next(modes, None)


def _is_taken() -> bool:
    return _current_mode() is not None


class _Sections:
    """The methods that a coalesced section begins and ends with, replaced while any thread is in a block."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._blocks = 0
        self._patches = Patches()

    def __enter__(self) -> None:
        with self._lock:
            self._blocks += 1
            if self._blocks > 1:
                return
            for owner in (ProcessGroup, RecordedProcessGroup):
                for name in ("_start_coalescing", "_end_coalescing"):
                    self._patches.wrap(owner, name, partial(_section_method, name))

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._blocks -= 1
            if not self._blocks:
                self._patches.restore()


def _section_method(name: str, original: Any) -> Any:
    def method(group: ProcessGroup, device: torch.device) -> Any:
        mode = _current_mode()
        if mode is None:
            return original(group, device)
        return mode.begin_section() if name.startswith("_start") else _work(mode.end_section(), [])

    return method


_sections_taken = _Sections()
