"""Reads the arguments of a c10d call into a :class:`~simcoll.spec.call.Call`.

The arguments of every overload are distinguished by their place (the tensors come first) and their type (an options
object, a reduce op, a timeout, integers), as the rows of :data:`simcoll.spec.collectives.METHODS` describe them.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass
from datetime import timedelta
from operator import index
from typing import Protocol, TypeAlias, TypeGuard

import torch
from torch.distributed import ReduceOp

from simcoll.core.native import native
from simcoll.recorder.option_fields import option_fields
from simcoll.recorder.tensor_fields import TensorFields, tensor_fields
from simcoll.spec.call import ANY_SOURCE, SPARSE, Buffer, Call
from simcoll.spec.collectives import METHODS
from simcoll.spec.table import CollectiveSpec, Kind, Method

_REDUCE_OP_TYPES = (ReduceOp, ReduceOp.RedOpType)
# By number: hashing and comparing an enum of pybind takes ten times as long.
_REDUCE_OP_NAMES = {op.value: name.lower() for name, op in ReduceOp.RedOpType.__members__.items() if name != "UNUSED"}
_NO_TIME = timedelta(0)
_METHODS = dict(METHODS)  # a proxy of it would take twice as long at every call
UsualForm: TypeAlias = tuple[str, tuple[str, ...], bool, bool]
"""The usual form of a method's arguments: its name, its roles, and whether its options have a reduce op and a root."""

USUAL_FORMS: dict[str, UsualForm] = {
    name: (name, method.buffers, "reduce_op" in spec.agree, "root" in method.integers)
    for name, (spec, method) in METHODS.items()
    if not spec.names_absent
}
"""Those of the methods that have one."""
_INTEGER_KEYWORDS = {"root": "root", "dstRank": "peer", "srcRank": "peer", "tag": "tag"}
_BUFFER_KEYWORDS = {
    "tensor": "inout",
    "tensors": "inout",
    "output": "outputs",
    "outputs": "outputs",
    "output_tensor": "outputs",
    "output_tensors": "outputs",
    "output_lists": "outputs",
    "outputTensor": "outputs",
    "outputTensors": "outputs",
    "input": "inputs",
    "inputs": "inputs",
    "input_tensor": "inputs",
    "input_tensors": "inputs",
    "input_list": "inputs",
    "inputTensor": "inputs",
    "inputTensors": "inputs",
}


@dataclass(slots=True)
class Arguments:
    """The arguments of one c10d call, by their roles."""

    spec: CollectiveSpec
    method: Method
    tensors: dict[str, list[torch.Tensor]]
    reduce_op: str | None
    integers: dict[str, int]
    splits: dict[str, tuple[int, ...]]
    stated_timeout: timedelta | None = None
    options: object = None
    """The options object of c10d that the call was given, or None."""
    asynchronous: bool = False
    synchronous: bool = False
    """True if the call states that its caller waits for it at once; a call without options states nothing."""
    place: torch.device | None = None
    """The GPU on which a call without tensors runs, as far as it is known."""
    first_absent_only: bool = False
    """True if only the first of several absent ranks is asked for (monitored_barrier without wait_all_ranks)."""
    known_key: tuple[object, ...] | None = None
    """The key, where it was made with the arguments."""

    @property
    def timeout(self) -> timedelta | None:
        """The call's own time limit, or None."""
        return timeout_of(self.options) or self.stated_timeout

    @property
    def device(self) -> str:
        """The device type of the first tensor; a call without tensors is the CPU's where no other place is known."""
        place = self.on
        return "cpu" if place is None else place.type

    @property
    def on(self) -> torch.device | None:
        """The device of the first tensor, or the place of a call without tensors."""
        for tensors in self.tensors.values():
            for tensor in tensors:
                return tensor.device
        return self.place

    @property
    def key(self) -> tuple[object, ...]:
        """A hashable stand-in for :meth:`call`, cheap to build: calls of equal keys are equal."""
        if self.known_key is not None:
            return self.known_key
        key: list[object] = [self.method.name, self.reduce_op, *self.integers.items(), *self.splits.items()]
        for role, tensors in self.tensors.items():
            key.append(role)
            for tensor in tensors:
                key += tensor.shape, tensor.dtype, tensor.device
                if tensor.layout is not torch.strided:
                    key.append(tensor.layout)
                else:
                    key.append(None if tensor.is_contiguous() else tensor.stride())
        return tuple(key)

    def call(self) -> Call:
        """The call as a value."""
        buffers = {role: tuple(map(_buffer, tensors)) for role, tensors in self.tensors.items()}
        both = buffers.get("inout", ())
        point_to_point = self.spec.kind is Kind.POINT_TO_POINT
        return Call(
            self.spec.name,
            self.method.name,
            inputs=buffers.get("inputs", both),
            outputs=buffers.get("outputs", both),
            reduce_op=self.reduce_op,
            root=self.integers.get("root"),
            input_splits=self.splits.get("input"),
            output_splits=self.splits.get("output"),
            peer=self.integers.get("peer", ANY_SOURCE) if point_to_point else None,
            tag=self.integers.get("tag"),
            coalesced=self.method.coalesced,
            form=self._form(),
        )

    def _form(self) -> str | None:
        sparse = any(tensor.layout is not torch.strided for tensors in self.tensors.values() for tensor in tensors)
        return SPARSE if sparse else None


def timeout_of(options: object) -> timedelta | None:
    """The time limit that an options object of c10d states, or None."""
    timeout = getattr(options, "timeout", None)
    return timeout if isinstance(timeout, timedelta) and timeout > _NO_TIME else None


Usual = tuple[dict[str, list[torch.Tensor]], str | None, dict[str, int], bool, tuple[object, ...]]
"""The tensors by role, the reduce op, the integers, whether the call is asynchronous, and its key."""


class Reader(Protocol):
    """Reads the arguments of the usual forms of calls (``_calls.c``)."""

    def read(
        self, method: str, roles: tuple[str, ...], reduces: bool, rooted: bool, args: Sequence[object], /
    ) -> Usual | None:
        """What was read; None unless ``args`` are the tensors of each role, and the options."""
        ...


def new_reader(fields: Mapping[type, int], places: TensorFields | None = None) -> Reader | None:
    """A compiled reader that knows the places of these fields of options, and those of tensors; None where Python alone
    reads arguments.
    """
    if (compiled := native("simcoll.recorder._calls")) is None:
        return None
    usual = torch.Tensor, torch.nn.Parameter, torch.strided
    reader: Reader = compiled.Reader(*usual, _REDUCE_OP_NAMES, dict(fields), places)
    return reader


@functools.cache
def compiled_reader() -> Reader | None:
    """The reader of this process, if it has one."""
    return new_reader(option_fields(), tensor_fields())


def read_usual(name: str, args: Sequence[object]) -> Usual | None:
    """Read the arguments of the c10d method ``name``; None where they have no usual form, or Python is to do it."""
    reader, form = compiled_reader(), USUAL_FORMS.get(name)
    return None if reader is None or form is None else reader.read(*form, args)


def arguments(name: str, args: Sequence[object], kwargs: Mapping[str, object], read: Usual | None = None) -> Arguments:
    """Tell the arguments of the c10d method ``name`` apart; TypeError or ValueError where they are of no known form.

    ``read`` is what :func:`read_usual` has found of them.
    """
    spec, method = _METHODS[name]
    if read is not None:
        tensors, reduce_op, integers, later, key = read
        return Arguments(
            spec, method, tensors, reduce_op, integers, {}, None, args[-1], later, not later, None, False, key
        )
    found = Arguments(spec, method, {}, "sum" if "reduce_op" in spec.agree else None, {}, {})
    if spec.names_absent:
        found.first_absent_only = True
    if "root" in method.integers:
        found.integers["root"] = 0
    taken = 0
    for role in method.buffers[: len(args)]:
        found.tensors[role] = _tensors(args[taken])
        taken += 1
    for value in args[taken:]:
        # The options object that most calls have.
        if getattr(value, "asyncOp", None) is None:
            _positional(found, value)
        else:
            _options(found, value)
    for keyword, value in kwargs.items():
        _keyword(found, keyword, value)
    return found


def _positional(found: Arguments, value: object) -> None:
    """Take an argument that only its type tells apart; torch takes whatever counts for an integer or for a list."""
    if isinstance(value, _REDUCE_OP_TYPES):
        found.reduce_op = _reduce_op_name(value)
    elif isinstance(value, timedelta):
        found.stated_timeout = value
    elif value is None:
        return
    elif isinstance(value, bool) and not found.method.integers:
        found.first_absent_only &= not value
    elif hasattr(value, "__index__") and not getattr(value, "ndim", 0):
        found.integers[_open_place(found, value)] = index(value)
    elif isinstance(value, Iterable):
        found.splits["input" if "output" in found.splits else "output"] = tuple(map(index, value))
    else:
        _options(found, value)


def _open_place(found: Arguments, value: object) -> str:
    """The name of the method's integer that a positional one is; a root has a default that it replaces."""
    for name in found.method.integers:
        if name == "root" or name not in found.integers:
            return name
    raise TypeError(f"{found.method.name} takes no further integer, got {value}")


def _keyword(found: Arguments, keyword: str, value: object) -> None:
    if keyword in _INTEGER_KEYWORDS:
        found.integers[_INTEGER_KEYWORDS[keyword]] = index(value)  # type: ignore[arg-type]  # TypeError is the answer
    elif keyword.endswith("_split_sizes") and isinstance(value, Iterable):
        found.splits[keyword.partition("_")[0]] = tuple(map(index, value))
    elif keyword in _BUFFER_KEYWORDS:
        role = _BUFFER_KEYWORDS[keyword]
        found.tensors[role if role in found.method.buffers else found.method.buffers[0]] = _tensors(value)
    else:
        _positional(found, value)


def _options(found: Arguments, options: object) -> None:
    """Take the fields of an options object of c10d; each kind has only some of the attributes."""
    if (asynchronous := getattr(options, "asyncOp", None)) is not None:
        found.asynchronous = bool(asynchronous)
        found.synchronous = not asynchronous
    if "root" in found.integers:
        found.integers["root"] = getattr(options, "rootRank", found.integers["root"])
    if found.reduce_op is not None and (reduce_op := getattr(options, "reduceOp", None)) is not None:
        found.reduce_op = _reduce_op_name(reduce_op)
    found.options = options


def _reduce_op_name(reduce_op: object) -> str:
    kind = getattr(reduce_op, "op", reduce_op)
    name = _REDUCE_OP_NAMES.get(getattr(kind, "value", None))
    return str(kind) if name is None else name


def _tensors(value: object) -> list[torch.Tensor]:
    """The tensors of an argument: one, a list, or lists in a list. Arguments readable only once are left alone."""
    # Lists first, and tensors of that very class: to ask torch whether something else is one takes long.
    if not isinstance(value, (list, tuple)):
        if isinstance(value, torch.Tensor):
            return [value]
        if not _is_collection(value):
            raise TypeError(f"expected tensors, got {type(value).__name__}")
    found: list[torch.Tensor] = []
    for item in value:
        if type(item) is torch.Tensor or isinstance(item, torch.Tensor):
            found.append(item)
        else:
            found += _tensors(item)
    return found


def _is_collection(value: object) -> TypeGuard[Iterable[object]]:
    return isinstance(value, Iterable) and isinstance(value, Sized) and not isinstance(value, (str, bytes, Mapping))


def _buffer(tensor: torch.Tensor) -> Buffer:
    return Buffer(
        tuple(int(size) for size in tensor.shape),
        str(tensor.dtype).removeprefix("torch."),
        tensor.device.type,
        tensor.device.index,
        _memory_order(tensor),
    )


def _memory_order(tensor: torch.Tensor) -> tuple[int, ...] | None:
    """The order in which a dense tensor's dimensions lie in memory; None for row-major and for anything not dense.

    A tensor with gaps is copied or refused by the backends, so that its strides never reach another rank.
    """
    if tensor.layout is not torch.strided or tensor.is_contiguous():
        return None
    sizes = [(size, stride) for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size != 1]
    order = tuple(sorted(range(len(sizes)), key=lambda dimension: -sizes[dimension][1]))
    expected = 1
    for dimension in reversed(order):
        if sizes[dimension][1] != expected:
            return None
        expected *= sizes[dimension][0]
    return None if order == tuple(range(len(sizes))) else order
