"""Runs a program's operators on tensors with shapes but no memory, if they are large and not integers.

Values that a program computes with stay real: integers and booleans, such as tokens, masks and counts, and tensors of a
few elements. Where these depend on tensors without memory, or the size of a result does, the operator runs on numbers
about 1 in place of the unknown values, and its result is tainted.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.utils import _pytree as pytree

from simcoll.dryrun.rank.fake_device import real_devices
from simcoll.dryrun.rank.tensor_marks import DEVICE, TAINTED, mark, put_mark, tensors_in

_FEW = 16
"""Tensors of at most so many elements are real: losses, metrics, an optimiser's step count."""

_MANY = 1 << 16
"""An expanded tensor of more elements counts as data."""

_MOST_REAL = 1 << 24
"""The limit of elements for real integer tensors, and for tensors that stand in for unknown values."""

_COLLECTIVES = ("_c10d_functional", "c10d_functional", "c10d", "_dtensor")
"""Operators that call process groups, which have to see the tensors."""

_COMPLETED = ("wait_tensor", "shard_dim_alltoall")
"""Those whose result is that of a call which has completed."""

_KERNELS = (torch._C.DispatchKey.CompositeExplicitAutograd, torch._C.DispatchKey.CPU)
_UNKNOWN = (DataDependentOutputException, DynamicOutputShapeException)


class UnknownValuesError(RuntimeError):
    """The program asks for something that depends on values which tensors without memory do not have."""


class FakeTensors:
    """Runs operators: a :data:`~simcoll.dryrun.rank.torch_patches.Compute`."""

    def __init__(self) -> None:
        self._mode = FakeTensorMode(allow_non_fake_inputs=True)
        fake: Any = FakeTensor
        fake.__reduce_ex__ = _as_zeros
        fake.__format__ = _formatted
        torch.utils.swap_tensors = _swapping_where_it_can(torch.utils.swap_tensors)
        warnings.filterwarnings("ignore", "Accessing the data pointer of FakeTensor")

    def __call__(
        self, operator: Any, tensors: Sequence[torch.Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run an operator on tensors with and without memory."""
        if torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None:
            return operator(*args, **kwargs)  # torch propagates shapes of its own
        if operator.namespace in _COLLECTIVES:
            return self._collective(operator, tensors, args, kwargs)
        if any(isinstance(tensor, FakeTensor) for tensor in tensors):
            return self._with_fakes(operator, args, kwargs)
        device = kwargs.get("device")
        if device is not None and device.type == "meta":
            return operator(*args, **kwargs)
        if tensors and (device is None or operator.is_view):
            if operator.is_view or not any(map(_is_expanded, tensors)):
                return operator(*args, **kwargs)
            # The gradient of a sum is its scalar, expanded: what follows from it has the size of the whole input.
            args, kwargs = pytree.tree_map_only(torch.Tensor, self._unexpanded, (args, kwargs))
            return self._with_fakes(operator, args, kwargs)
        shown = self._faked(operator, args, kwargs)
        return operator(*args, **kwargs) if all(map(_is_real, tensors_in((shown,)))) else shown

    def without_memory(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor like the given one without memory; integers and tensors on ``meta`` are returned unchanged."""
        if isinstance(tensor, FakeTensor) or tensor.device.type == "meta" or not _has_unknown_values(tensor):
            return tensor
        with real_devices():
            fake = self._mode.from_tensor(tensor)
        self._forget()
        put_mark(fake, DEVICE, mark(tensor, DEVICE))
        return fake

    def loaded(self, tensor: torch.Tensor) -> torch.Tensor:
        """The replacement of a loaded tensor: one without memory, unless it has few elements."""
        if _is_real(tensor) or isinstance(tensor, FakeTensor):
            return tensor.contiguous()
        with real_devices(), self._mode:
            fake = torch.empty(tensor.shape, dtype=tensor.dtype)
        put_mark(fake, DEVICE, mark(tensor, DEVICE))
        return fake

    def _unexpanded(self, tensor: torch.Tensor) -> torch.Tensor:
        return self.without_memory(tensor) if _is_expanded(tensor) else tensor

    def _faked(self, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with self._mode:
            result = operator(*args, **kwargs)
        self._forget()
        return result

    def _forget(self) -> None:
        """Drop weak references to parameters: ``Module.to`` refuses to swap parameters that have one."""
        if len(memo := self._mode.fake_tensor_converter.meta_converter.tensor_memo):
            memo.clear()

    def _collective(
        self, operator: Any, tensors: Sequence[torch.Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call a process group; C++ has made the result with memory, which the program gets without."""
        if any(isinstance(tensor, FakeTensor) for tensor in tensors):
            key = next(key for key in _KERNELS if operator.has_kernel_for_dispatch_key(key))
            result = operator._op_dk(key, *args, **kwargs)
        else:
            result = operator(*args, **kwargs)
        if operator._opname not in _COMPLETED:
            return result  # torch waits for this very tensor
        return pytree.tree_map_only(torch.Tensor, self._received, result)

    def _received(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor if _is_real(tensor) else self.without_memory(tensor)

    def _with_fakes(self, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            result = self._faked(operator, args, kwargs)
        except _UNKNOWN:
            return self._with_stand_ins(operator, args, kwargs)
        if operator._schema.is_mutable:
            return _written(operator, args, kwargs, result)
        if operator.is_view or all(map(_has_unknown_values, tensors_in((result,)))):
            return result
        if _elements((args, kwargs, result)) <= _MOST_REAL:
            return self._with_stand_ins(operator, args, kwargs)
        return result

    def _with_stand_ins(self, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operator with numbers in place of unknown values; its integers are real and tainted."""
        _refuse_more(_elements((args, kwargs)), operator)
        args, kwargs = pytree.tree_map_only(FakeTensor, stand_in, (args, kwargs))
        result = operator(*args, **kwargs)
        for tensor in tensors_in((result,)):
            put_mark(tensor, TAINTED, True)
        return pytree.tree_map_only(torch.Tensor, self.without_memory, result)


def _is_real(tensor: torch.Tensor) -> bool:
    return tensor.numel() <= (_FEW if _has_unknown_values(tensor) else _MOST_REAL)


def _is_expanded(tensor: torch.Tensor) -> bool:
    """True if few real numbers stand for many: with memory, a result would have as many as it has elements."""
    many = tensor.numel() > _MANY and _has_unknown_values(tensor) and not isinstance(tensor, FakeTensor)
    return many and any(step == 0 and size > 1 for step, size in zip(tensor.stride(), tensor.shape, strict=True))


def _has_unknown_values(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _elements(values: object) -> int:
    return sum(leaf.numel() for leaf in pytree.tree_leaves(values) if isinstance(leaf, FakeTensor))


def stand_in(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of numbers about 1 in place of one without memory, equal for equal shapes; any other tensor unchanged.

    The numbers differ, so that data routed to the largest of them spreads; a scalar is 1.
    """
    if not isinstance(tensor, FakeTensor):
        return tensor
    _refuse_more(tensor.numel(), "what the program reads")
    if not tensor.dim():
        return torch.ones((), dtype=tensor.dtype)
    numbers = torch.rand(tensor.shape, generator=torch.Generator().manual_seed(0))
    return (numbers + 0.5).to(tensor.dtype)


def _refuse_more(elements: int, what: object) -> None:
    if elements > _MOST_REAL:
        raise UnknownValuesError(f"{what} rests on {elements} values, which --fake-tensors leaves out")


def _swapping_where_it_can(
    swap: Callable[[torch.Tensor, torch.Tensor], None],
) -> Callable[[torch.Tensor, torch.Tensor], None]:
    """The swap by which ``Module.to`` replaces a parameter without memory, also of one that a graph holds.

    torch replaces the data of a parameter with memory, which works with those too.
    """

    def swapped(one: torch.Tensor, other: torch.Tensor) -> None:
        try:
            swap(one, other)
        except RuntimeError:
            if not (isinstance(one, FakeTensor) and isinstance(other, FakeTensor)):
                raise
            one.data = other.data
            put_mark(one, DEVICE, mark(other, DEVICE))

    return swapped


def _formatted(tensor: FakeTensor, spec: str) -> str:
    return format(str(tensor) if tensor.dim() else tensor.item(), spec)


def _as_zeros(tensor: FakeTensor, protocol: Any) -> Any:
    """The pickled form of a tensor: its shape, with a single zero as memory."""
    return torch.zeros((), dtype=tensor.dtype).expand(tensor.shape).__reduce_ex__(protocol)


def _written(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Any:
    """The result of an operator that writes to its arguments, which are returned themselves."""
    schema = operator._schema
    given = {**dict(zip((one.name for one in schema.arguments), args, strict=False)), **kwargs}
    written = {
        alias: given[one.name]
        for one in schema.arguments
        if one.alias_info is not None and one.alias_info.is_write and one.name in given
        for alias in one.alias_info.before_set
    }
    several = len(schema.returns) > 1
    results = list(result) if several else [result]
    for place, returned in enumerate(schema.returns):
        if returned.alias_info is not None and returned.alias_info.is_write:
            results[place] = next(written[alias] for alias in returned.alias_info.before_set if alias in written)
    return tuple(results) if several else results[0]
