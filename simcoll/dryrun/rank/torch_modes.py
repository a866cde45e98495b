"""The two torch modes around a dry run's program: one sees the functions that it calls, the other every operator.

They propagate marks (:mod:`simcoll.dryrun.rank.tensor_marks`) from an operator's inputs to its outputs, run operators
for fake GPUs on the CPU, and let operators compute without memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from simcoll.dryrun.rank.fake_device import ORIGINAL, FakeDevices, put_on, real_devices
from simcoll.dryrun.rank.taint import TaintTracker, tainted_numbers
from simcoll.dryrun.rank.tensor_marks import DEVICE, TAINTED, TAINTED_SIZES, holder, tensors_in
from simcoll.wrapper.dispatch_mode import answers_itself

_CPU = torch.device("cpu")
_MOST_VALUES = 1 << 16
"""Tensors of more elements count as data: what is computed from them is not tainted."""

_COMPARE = (torch.equal, torch.allclose, torch.Tensor.equal, torch.Tensor.allclose)

Compute = Callable[[Any, Sequence[torch.Tensor], tuple[Any, ...], dict[str, Any]], Any]
"""Runs an operator, given the tensors among its arguments and all its arguments."""


def _run_operator(operator: Any, tensors: Sequence[torch.Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return operator(*args, **kwargs)


class OperatorMode(TorchDispatchMode):
    """Runs each operator on the CPU and propagates the marks."""

    supports_higher_order_operators = True

    def __init__(self, devices: FakeDevices | None, compute: Compute = _run_operator) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._devices = devices
        self._compute = compute

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one operator; other tensor subclasses handle it first, and come here with their inner tensors."""
        if isinstance(func, HigherOrderOperator):
            return self._run_inner(func, args, kwargs or {})
        if func.namespace == "prim" or any(answers_itself(kind) for kind in types):
            return NotImplemented
        kwargs = kwargs or {}
        device = None
        if self._devices is not None and (asked := kwargs.get("device")) is not None and asked.type == "cuda":
            device, kwargs = self._devices.of(asked), {**kwargs, "device": _CPU}
        tensors = [*tensors_in(args), *tensors_in(kwargs.values())]
        with real_devices():
            result = self._compute(func, tensors, args, kwargs)
        if tensors or device is not None:
            _propagate(tensors, result, device)
        return result

    def _run_inner(self, func: HigherOrderOperator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run only the operator inside a higher-order one: what surrounds it, such as a random state, is CUDA's."""
        place = next((place for place, value in enumerate(args) if isinstance(value, OpOverload)), None)
        if place is None:
            return NotImplemented
        with self:
            return args[place](*args[place + 1 :], **kwargs)


def _propagate(tensors: Sequence[torch.Tensor], result: object, device: torch.device | None) -> None:
    """Put the marks of an operator's inputs on the storages that it made."""
    holders = [holder(tensor) for tensor in tensors]
    device = device or next((found for one in holders if (found := getattr(one, DEVICE, None)) is not None), None)
    tainted = any(
        getattr(one, TAINTED, False) and tensor.numel() <= _MOST_VALUES
        for one, tensor in zip(holders, tensors, strict=True)
    )
    sizes = frozenset[int]().union(*(getattr(one, TAINTED_SIZES, ()) for one in holders))
    if device is None and not tainted and not sizes:
        return
    for made in tensors_in((result,)):
        place = holder(made)
        if any(place is one for one in holders):
            continue
        if device is not None:
            setattr(place, DEVICE, device)
        if tainted:
            setattr(place, TAINTED, True)
        if not sizes.isdisjoint(made.shape):
            setattr(place, TAINTED_SIZES, sizes)


class FunctionMode(TorchFunctionMode):
    """Sees which device the program asks for, and which tensor sizes it computes from tainted values."""

    def __init__(self, devices: FakeDevices | None, taint: TaintTracker) -> None:
        super().__init__()
        self._devices = devices
        self._taint = taint

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run one function of torch."""
        func, kwargs = getattr(func, ORIGINAL, func), kwargs or {}
        if func is torch.device and self._devices is not None and args and isinstance(args[0], int):
            return self._devices.of(args[0])
        if func in _COMPARE and any(map(self._taint.is_tainted, tensors_in((*args, *kwargs.values())))):
            # A program that compares whole tensors expects them to be equal.
            self._taint.note()
            return True
        asked = kwargs.get("device") if self._devices is not None else None
        if asked is None and not kwargs.get("pin_memory"):
            result = func(*args, **kwargs)
        else:
            result = self._on_device(func, args, dict(kwargs), asked)
        if sizes := tainted_numbers((*args, *kwargs.values())):
            for tensor in tensors_in((result,)):
                place = holder(tensor)
                setattr(place, TAINTED_SIZES, sizes | (getattr(place, TAINTED_SIZES, None) or frozenset()))
        return result

    def _on_device(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], asked: object) -> Any:
        device = None if self._devices is None else self._devices.of(asked)
        if self._devices is not None:
            kwargs.pop("pin_memory", None)
        if device is None or device.type not in ("cpu", "cuda"):
            return func(*args, **kwargs)
        result = func(*args, **{**kwargs, "device": _CPU})
        if isinstance(result, torch.Tensor) and result.device != device:
            if any(holder(result) is holder(tensor) for tensor in tensors_in(args)):
                result = result.clone()
            put_on(result, device)
        return result
