"""Runs a dry run's program in a patched torch: its modes, in all threads, checkpoints of one rank, no compiler.

One of the two torch modes sees the functions that the program calls, the other every operator. They propagate marks
(:mod:`simcoll.dryrun.rank.tensor_marks`) from an operator's inputs to its outputs, run operators for fake GPUs on the
CPU, and let operators compute without memory.

:func:`use_lazy_shards` has FSDP2 make only the shards that a rank uses: of hundreds, its own one and the size of the
first. Where tensors have no memory, a rank of a large job would spend most of its time on the others.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any, overload

import torch
import torch.testing
from torch import nn
from torch._ops import HigherOrderOperator, OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import attention
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils._device import DeviceContext, _device_constructors
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader

from simcoll.core.patches import Patches
from simcoll.dryrun.rank.fake_attention import (
    attention_of_cuda,
    flex_attention_of_cuda,
    is_cuda_attention,
    is_flex_attention,
)
from simcoll.dryrun.rank.fake_cuda import register_operators
from simcoll.dryrun.rank.fake_device import ORIGINAL, FakeDevices, put_on, put_pinned, real_devices
from simcoll.dryrun.rank.fake_tensors import FakeTensors
from simcoll.dryrun.rank.saved_files import load_and_save_alone
from simcoll.dryrun.rank.taint import TaintTracker, has_tainted_size, tainted_numbers
from simcoll.dryrun.rank.tensor_marks import DEVICE, TAINTED, TAINTED_SIZES, holder, tensors_in
from simcoll.wrapper.dispatch_mode import answers_itself

_CPU = torch.device("cpu")
_MOST_VALUES = 1 << 16
"""Tensors of more elements count as data: results computed from them are not tainted."""

_COMPARE = (torch.equal, torch.allclose, torch.Tensor.equal, torch.Tensor.allclose)

_ASK_FOR_TRUTH = (torch.is_nonzero, torch.Tensor.is_nonzero)

Compute = Callable[[Any, Sequence[torch.Tensor], tuple[Any, ...], dict[str, Any]], Any]
"""Runs an operator, given the tensors among its arguments and all its arguments."""


_NARROW = frozenset((torch.bfloat16, torch.float16))
_SLOW_NARROW = frozenset(
    getattr(torch.ops.aten, name).default
    for name in (
        "mm",
        "addmm",
        "bmm",
        "baddbmm",
        "convolution",
        "convolution_backward",
        "_scaled_dot_product_flash_attention_for_cpu_backward",
    )
)
"""Operators that most CPUs compute 10 to 40 times slower in 16 bits than in 32."""


def _run_operator(operator: Any, tensors: Sequence[torch.Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operator; a slow one of 16-bit floats in 32 bits, to which GPUs add up such products as well."""
    if operator not in _SLOW_NARROW or tensors[0].dtype not in _NARROW:
        return operator(*args, **kwargs)
    dtype = tensors[0].dtype
    if any(tensor.dtype != dtype for tensor in tensors[:3]):
        return operator(*args, **kwargs)  # it refuses operands that differ
    wide = [value.float() if isinstance(value, torch.Tensor) and value.dtype == dtype else value for value in args]
    result = operator(*wide, **kwargs)
    if isinstance(result, torch.Tensor):
        return result.to(dtype)
    return tuple(one if one is None else one.to(dtype) for one in result)


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
            _propagate(func, tensors, result, device)
        return result

    def _run_inner(self, func: HigherOrderOperator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run only the operator inside a higher-order one: its surroundings, such as a random state, are CUDA's."""
        place = next((place for place, value in enumerate(args) if isinstance(value, OpOverload)), None)
        if place is None:
            return NotImplemented
        with self:
            return args[place](*args[place + 1 :], **kwargs)


_MIXES_DEVICES = ("aten::copy_", "aten::set_", "aten::_foreach", "aten::_fused")
"""Operators that write to tensors on other devices than that of their inputs."""


def _propagate(operator: Any, tensors: Sequence[torch.Tensor], result: object, device: torch.device | None) -> None:
    """Put the marks of an operator's inputs on the storages that it made.

    A tensor that it writes to may have been made within another operator, which asked C++ for its input's device.
    """
    holders = [holder(tensor) for tensor in tensors]
    device = device or next((found for one in holders if (found := getattr(one, DEVICE, None)) is not None), None)
    tainted = any(
        getattr(one, TAINTED, False) and tensor.numel() <= _MOST_VALUES
        for one, tensor in zip(holders, tensors, strict=True)
    )
    sizes = frozenset[int]().union(*(getattr(one, TAINTED_SIZES, ()) for one in holders))
    if sizes and operator is _CAT and isinstance(result, torch.Tensor):
        sizes |= _joined_sizes(tensors, sizes)
    if device is None and not tainted and not sizes:
        return
    for made in tensors_in((result,)):
        place = holder(made)
        if any(place is one for one in holders):
            if device is not None and getattr(place, DEVICE, None) is None and _is_written_alike(operator):
                setattr(place, DEVICE, device)
            continue
        if device is not None:
            setattr(place, DEVICE, device)
        if tainted:
            setattr(place, TAINTED, True)
        if not sizes.isdisjoint(made.shape):
            setattr(place, TAINTED_SIZES, sizes)


def _joined_sizes(tensors: Sequence[torch.Tensor], sizes: frozenset[int]) -> set[int]:
    """The sums of each dimension in which one of the tensors that are joined has a tainted size."""
    columns = zip(*(tensor.shape for tensor in tensors), strict=False)
    return {sum(column) for column in columns if not sizes.isdisjoint(column)}


_CAT = torch.ops.aten.cat.default


def _is_written_alike(operator: Any) -> bool:
    return operator._schema.is_mutable and not operator.name().startswith(_MIXES_DEVICES)


class FunctionMode(TorchFunctionMode):
    """Sees which device the program asks for, and which tensor sizes it computes from tainted values."""

    def __init__(self, devices: FakeDevices | None, taint: TaintTracker) -> None:
        super().__init__()
        self._devices = devices
        self._taint = taint

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run one function of torch; one that fails on a tensor of tainted size has read that size."""
        func, kwargs = getattr(func, ORIGINAL, func), kwargs or {}
        try:
            return self._run(func, args, kwargs)
        except Exception:
            if has_tainted_size((*args, *kwargs.values())):
                self._taint.note()
            raise

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if func is torch.device and self._devices is not None:
            named = args[0] if args else kwargs.get("device")
            return self._devices.of(named) if isinstance(named, int) else func(*args, **kwargs)
        if func in _COMPARE and any(map(self._taint.is_tainted, tensors_in((*args, *kwargs.values())))):
            # A program that compares whole tensors expects them to be equal.
            self._taint.note()
            return True
        if func in _ASK_FOR_TRUTH:
            return bool(next(tensors_in((*args, *kwargs.values()))))
        asked = kwargs.get("device") if self._devices is not None else None
        result: Any
        if self._devices is not None and is_cuda_attention(func, args, kwargs):
            result = attention_of_cuda(*args, **kwargs)
        elif self._devices is not None and is_flex_attention(func):
            with self:  # it makes tensors on the device, too
                result = flex_attention_of_cuda(*args, **kwargs)
        elif asked is None and not kwargs.get("pin_memory"):
            result = func(*args, **kwargs)
        else:
            result = self.on_device(func, args, dict(kwargs), asked)
        if sizes := tainted_numbers((*args, *kwargs.values())):
            for tensor in tensors_in((result,)):
                place = holder(tensor)
                setattr(place, TAINTED_SIZES, sizes | (getattr(place, TAINTED_SIZES, None) or frozenset()))
        return result

    def on_device(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], asked: object) -> Any:
        """Run a function that makes a tensor on the device that the program asks for."""
        device = None if self._devices is None else self._devices.of(asked)
        if self._devices is not None and kwargs.pop("pin_memory", None):
            result = func(*args, **kwargs)
            return put_pinned(result) if isinstance(result, torch.Tensor) else result
        if device is None or device.type not in ("cpu", "cuda"):
            return func(*args, **kwargs)
        result = func(*args, **{**kwargs, "device": _CPU})
        if isinstance(result, torch.Tensor) and result.device != device:
            if any(holder(result) is holder(tensor) for tensor in tensors_in(args)):
                result = result.clone()
            put_on(result, device)
        return result


_MODULES = tuple(f"torch.distributed.fsdp._fully_shard.{name}" for name in ("_fsdp_common", "_fsdp_param"))


class LazyShards(Sequence[torch.Tensor]):
    """The chunks of ``torch.chunk``, followed by empty tensors up to ``count``; each is made when it is read."""

    def __init__(self, tensor: torch.Tensor, count: int, dim: int) -> None:
        self._tensor, self._count, self._dim = tensor, count, dim

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, place: int) -> torch.Tensor: ...

    @overload
    def __getitem__(self, place: slice) -> list[torch.Tensor]: ...

    def __getitem__(self, place: int | slice) -> torch.Tensor | list[torch.Tensor]:
        if isinstance(place, slice):
            return [self[one] for one in range(*place.indices(self._count))]
        if not -self._count <= place < self._count:
            raise IndexError(f"shard {place} of {self._count}")
        size = self._tensor.size(self._dim)
        each = -(-size // self._count)
        begin = place % self._count * each
        if begin >= size and place % self._count:
            return self._tensor.new_empty(0)
        return self._tensor.narrow(self._dim, begin, min(each, size - begin))


def use_lazy_shards(patches: Patches) -> None:
    """Replace FSDP2's function, where this torch has it."""
    for name in _MODULES:
        with contextlib.suppress(ImportError):
            patches.replace(importlib.import_module(name), "_chunk_with_empty", LazyShards)


@contextmanager
def patched_torch(
    patches: Patches,
    devices: FakeDevices | None,
    taint: TaintTracker,
    *,
    fake_tensors: bool,
) -> Iterator[None]:
    """Run a program with these fake GPUs, and with tensors without memory if ``fake_tensors``."""
    fakes = FakeTensors() if fake_tensors else None
    if fakes is not None:
        patches.wrap(nn.Parameter, "__new__", functools.partial(_without_memory, fakes))
        patches.wrap(DataLoader, "__init__", _without_workers)
        patches.wrap(nn.init, "_no_grad_trunc_normal_", _without_drawing)
    load_and_save_alone(patches, None if fakes is None else fakes.loaded)
    patches.wrap(torch, "compile", _with_eager_backend)
    torch.compiler.set_stance("force_eager")
    patches.wrap(torch.testing, "assert_close", functools.partial(_trusting_tainted, taint))
    operators = None if devices is None else register_operators()
    if devices is not None:
        _allow_any_attention(patches)
        patches.replace(DeviceContext, "__torch_function__", _default_device(FunctionMode(devices, taint)))

    def enter() -> ExitStack:
        stack = ExitStack()
        stack.enter_context(FunctionMode(devices, taint))
        stack.enter_context(OperatorMode(devices) if fakes is None else OperatorMode(devices, fakes))
        return stack

    patches.wrap(threading.Thread, "_bootstrap_inner", functools.partial(_in_modes, enter))
    patches.wrap(torch.autograd, "_engine_run_backward", functools.partial(_seen, FunctionMode(devices, taint)))
    with enter():
        yield
    del operators


def _seen(mode: FunctionMode, run: Callable[..., Any]) -> Callable[..., Any]:
    """Run a backward pass in the mode, which torch leaves while a mode handles ``Tensor.backward``.

    The pass runs functions of the program: recomputed layers, hooks, backward functions of its own.
    """

    @functools.wraps(run)
    def run_backward(*args: Any, **kwargs: Any) -> Any:
        if any(isinstance(one, FunctionMode) for one in _get_current_function_mode_stack()):
            return run(*args, **kwargs)
        with mode:
            return run(*args, **kwargs)

    return run_backward


def _default_device(mode: FunctionMode) -> Callable[..., Any]:
    """``torch.set_default_device`` for fake GPUs: its mode runs after this module's."""

    def __torch_function__(  # noqa: N807
        self: DeviceContext, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func in _device_constructors() and kwargs.get("device") is None:
            return mode.on_device(func, args, {**kwargs, "device": self.device}, self.device)
        return func(*args, **kwargs)

    return __torch_function__


def _without_memory(fakes: FakeTensors, made: Callable[..., Any]) -> Callable[..., Any]:
    """Make every parameter without memory, however small: a model's parameters are used together."""

    def new(cls: Any, data: torch.Tensor | None = None, requires_grad: bool = True) -> Any:
        return made(cls, None if data is None else fakes.without_memory(data), requires_grad)

    return new


def _without_drawing(draw: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Leave tensors without memory alone: torch draws until all numbers lie within bounds, which unknown ones never do.

    torch itself does so for tensors on ``meta``.
    """

    @functools.wraps(draw)
    def drawn(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return tensor if isinstance(tensor, FakeTensor) else draw(tensor, *args, **kwargs)

    return drawn


def _without_workers(begin: Callable[..., None]) -> Callable[..., None]:
    """Let data loaders load in this process: tensors without memory cannot be passed between processes."""

    @functools.wraps(begin)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        if kwargs.get("num_workers"):
            for name in ("num_workers", "prefetch_factor", "persistent_workers", "timeout", "multiprocessing_context"):
                kwargs.pop(name, None)
        begin(self, *args, **kwargs)

    return __init__


def _trusting_tainted(taint: TaintTracker, compare: Callable[..., None]) -> Callable[..., None]:
    """Let ``torch.testing`` assume that tainted values are as expected."""

    @functools.wraps(compare)
    def assert_close(*args: Any, **kwargs: Any) -> None:
        if any(map(taint.is_tainted, tensors_in((*args, *kwargs.values())))):
            taint.note()
        else:
            compare(*args, **kwargs)

    return assert_close


def _with_eager_backend(compile_model: Callable[..., Any]) -> Callable[..., Any]:
    """Run compiled code as it is written: its calls are the same, and no rank spends time on compiling."""

    @functools.wraps(compile_model)
    def compile(model: Any = None, **kwargs: Any) -> Any:  # noqa: A001
        kwargs = {name: value for name, value in kwargs.items() if name in ("fullgraph", "dynamic")}
        return compile_model(model, backend="eager", **kwargs)

    return compile


def _allow_any_attention(patches: Patches) -> None:
    """Let a program choose attention kernels that the CPU lacks."""
    for module, name in ((attention, "sdpa_kernel"), (torch.backends.cuda, "sdp_kernel")):
        patches.replace(module, name, lambda *args, **kwargs: nullcontext())
    for name in ("enable_flash_sdp", "enable_mem_efficient_sdp", "enable_math_sdp", "enable_cudnn_sdp"):
        patches.replace(torch.backends.cuda, name, lambda enabled: None)


def _in_modes(enter: Callable[[], ExitStack], begin: Callable[[Any], None]) -> Callable[[Any], None]:
    """Run every thread in the modes, which are local to a thread."""

    def bootstrap(self: Any) -> None:
        with enter():
            begin(self)

    return bootstrap
