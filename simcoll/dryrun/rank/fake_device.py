"""Fake GPUs for tensors: their memory is the CPU's, and a mark holds the GPU that the program has put them on.

The program sees the marked device; code within :func:`real_devices`, such as torch's own kernels, sees the CPU.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.multiprocessing import reductions

from simcoll.core.patches import Patches
from simcoll.dryrun.rank.tensor_marks import DEVICE, mark, put_mark

_CPU = torch.device("cpu")
_TO = ("device", "dtype", "non_blocking", "copy", "memory_format")

ORIGINAL = "_simcoll_original"
"""The attribute of a replacement that holds the function of torch which it replaces."""

_TensorBase: Any = torch._C.TensorBase
_memory_device: Callable[[torch.Tensor], torch.device] = _TensorBase.device.__get__
_fake_tensor_device: Callable[[Any], torch.device] = vars(FakeTensor)["device"].fget


class _Depth(threading.local):
    """Above 0 where the current thread sees the real device of tensors."""

    within = 0


_depth = _Depth()


@contextmanager
def real_devices(*, enabled: bool = True) -> Iterator[None]:
    """Let tensors report the device of their memory, or with ``enabled=False`` their fake one again."""
    before, _depth.within = _depth.within, int(enabled)
    try:
        yield
    finally:
        _depth.within = before


class FakeDevices:
    """The fake GPUs of this process, and the current one."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.current = 0
        self.initialised = False
        """True once the program has used a GPU: until then torch chooses that of LOCAL_RANK itself."""

    def use(self, asked: object) -> int:
        """Change the current GPU and return the previous one; None and negative numbers change nothing."""
        before, self.initialised = self.current, True
        index = asked if isinstance(asked, int) else getattr(torch.device(asked), "index", None)  # type: ignore[call-overload]
        if index is not None and index >= 0:
            self.current = self.checked(index)
        return before

    def checked(self, index: int) -> int:
        """The index of a GPU; raises RuntimeError as CUDA does where there is no such GPU."""
        if index >= self.count:
            raise RuntimeError(f"CUDA error: invalid device ordinal: cuda:{index} of a node with {self.count} GPUs")
        return index

    def of(self, asked: object) -> torch.device | None:
        """The device that an argument denotes; None for None."""
        if asked is None:
            return None
        if isinstance(asked, int):
            return torch.device("cuda", self.checked(asked))
        device = asked if isinstance(asked, torch.device) else torch.device(str(asked))
        if device.type != "cuda":
            return device
        self.initialised = True
        return torch.device("cuda", self.current if device.index is None else self.checked(device.index))


def put_on(tensor: torch.Tensor, device: torch.device | None) -> None:
    """Mark the device that a tensor is on."""
    put_mark(tensor, DEVICE, _gpu(device))


def _gpu(device: torch.device | None) -> torch.device | None:
    return device if device is not None and device.type == "cuda" else None


def install_fake_devices(patches: Patches, devices: FakeDevices) -> None:
    """Let tensors report their fake device and move between fake devices, from now on in this process."""
    replacements = {
        "device": property(_faked_device(_memory_device)),
        "_make_wrapper_subclass": _in_cpu_memory(torch.Tensor._make_wrapper_subclass),
        "is_cuda": property(lambda self: self.device.type == "cuda"),
        "is_cpu": property(lambda self: self.device.type == "cpu"),
        "get_device": lambda self: self.device.index if self.device.type == "cuda" else -1,
        "to": _moving(torch.Tensor.to, devices),
        "cuda": lambda self, device=None, *args, **kwargs: self.to(devices.of("cuda" if device is None else device)),
        "cpu": lambda self, *args, **kwargs: self.to(_CPU),
        "pin_memory": lambda self, *args, **kwargs: self if is_pinned(self) else put_pinned(self.clone()),
        "is_pinned": lambda self, *args, **kwargs: is_pinned(self),
        "record_stream": lambda self, stream: None,
        "type": _typed(torch.Tensor.type),
        "new": _on_own_device(torch.Tensor.new),
        "new_tensor": _on_own_device(torch.Tensor.new_tensor),
        "__deepcopy__": _copied(torch.Tensor.__deepcopy__),
    }
    for name, value in replacements.items():
        patches.replace(torch.Tensor, name, value)
    patches.replace(FakeTensor, "device", property(_faked_device(_fake_tensor_device)))
    patches.replace(torch, "get_device", lambda tensor: tensor.get_device())
    patches.wrap(torch._C._nn, "_parse_to", functools.partial(_parsing, devices=devices))
    _install_storages(patches, devices)
    _install_tensor_types(patches)


def _faked_device(true: Callable[[Any], torch.device]) -> Callable[[Any], torch.device]:
    def device(tensor: torch.Tensor) -> torch.device:
        try:
            found = true(tensor)
        except (RuntimeError, TypeError):
            # A subclass that knows torch's own property, such as ShardedTensor, is asked for this one.
            found = type(tensor).__torch_function__(_memory_device, (type(tensor),), (tensor,))
        if _depth.within or found.type != "cpu":
            return found
        return mark(tensor, DEVICE) or found

    return device


def _in_cpu_memory(make: Callable[..., Any]) -> Any:
    """Create wrapper tensors, whose inner tensors have the marks, on the CPU: C++ would ask for CUDA otherwise."""

    @functools.wraps(make)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        device = kwargs.get("device")
        if device is not None and torch.device(device).type == "cuda":
            kwargs["device"] = _CPU
        return make(*args, **kwargs)

    return staticmethod(wrapper)


def _moving(to: Callable[..., Any], devices: FakeDevices) -> Callable[..., Any]:
    @functools.wraps(to)
    def move(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        named = _named(args, kwargs)
        device = None if _depth.within else devices.of(named.get("device"))
        if device is None or device.type not in ("cpu", "cuda"):
            return to(tensor, *args, **kwargs)
        if device == tensor.device:
            del named["device"]
            return to(tensor, **{"dtype": tensor.dtype, **named})
        moved = to(tensor, **{**named, "device": _CPU, "copy": True})
        put_on(moved, device)
        return moved

    return _original(move, to)


def _parsing(parse: Callable[..., Any], devices: FakeDevices) -> Callable[..., Any]:
    """The parser of the arguments of ``Module.to`` and its like: C++ would ask for CUDA, and see real devices."""

    @functools.wraps(parse)
    def parse_to(*args: Any, **kwargs: Any) -> Any:
        if "tensor" in kwargs:
            kwargs["other"] = kwargs.pop("tensor")
        named = _named(args, kwargs)
        device = devices.of(named.pop("device", None))
        # Without a dtype it expects a device.
        parsed = parse(**named) if named.get("dtype") is not None else parse(_CPU, **named)
        return device, *parsed[1:]

    return _original(parse_to, parse)


def _original(wrapper: Callable[..., Any], wrapped: Callable[..., Any]) -> Callable[..., Any]:
    """Record a wrapped function: a torch mode that gets the wrapper calls that, since the wrapper has run already."""
    setattr(wrapper, ORIGINAL, wrapped)
    return wrapper


def _named(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of ``to`` by name; a tensor is replaced by its device and dtype."""
    names = _TO if not args or not isinstance(args[0], (torch.Tensor, torch.dtype)) else ("other", *_TO[2:])
    if args and isinstance(args[0], torch.dtype):
        names = _TO[1:]
    named = {**dict(zip(names, args, strict=False)), **kwargs}
    if (other := named.pop("other", None)) is not None:
        named |= {"device": other.device, "dtype": other.dtype}
    return {name: value for name, value in named.items() if value is not None}


def _typed(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def type_of(tensor: torch.Tensor, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
        if isinstance(dtype, CudaTensorType):
            dtype = f"torch.cuda.{dtype.__name__}"
        if isinstance(dtype, str) and dtype.startswith("torch.cuda."):
            return original(tensor, dtype.replace("torch.cuda.", "torch.", 1), *args, **kwargs).cuda()
        found = original(tensor, dtype, *args, **kwargs)
        return found.replace("torch.", "torch.cuda.", 1) if isinstance(found, str) and tensor.is_cuda else found

    return _original(type_of, original)


def _copied(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def deepcopy(tensor: torch.Tensor, memo: Any) -> Any:
        with real_devices():
            copy = original(tensor, memo)
        if (device := mark(tensor, DEVICE)) is not None and copy is not tensor:
            put_on(copy, device)
        return copy

    return deepcopy


def _on_own_device(make: Callable[..., Any]) -> Callable[..., Any]:
    """A method that makes a tensor on the tensor's own device; C++ does not tell the modes which one that is."""

    @functools.wraps(make)
    def made(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        result = make(tensor, *args, **kwargs)
        if kwargs.get("device") is None and tensor.device.type == "cuda" and not _depth.within:
            put_on(result, tensor.device)
        return result

    return _original(made, make)


_PINNED = "_simcoll_pinned"


def is_pinned(tensor: torch.Tensor) -> bool:
    """True if the program has pinned the tensor's memory."""
    return bool(mark(tensor, _PINNED))


def put_pinned(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, its memory marked as pinned."""
    put_mark(tensor, _PINNED, True)
    return tensor


def _install_storages(patches: Patches, devices: FakeDevices) -> None:
    """Let storages report the fake device and move: ``torch.save`` writes it, ``torch.load`` goes by it."""
    storage: Any = torch.UntypedStorage
    true = torch._C.StorageBase.device.__get__  # type: ignore[attr-defined]

    def device_of(own: Any) -> torch.device:
        found: torch.device = true(own)
        return found if _depth.within or found.type != "cpu" else getattr(own, DEVICE, None) or found

    def moved(own: Any, *, device: Any, non_blocking: bool = False) -> Any:
        asked = devices.of(device)
        if asked == own.device:
            return own
        with real_devices():
            copy = own.clone()
        setattr(copy, DEVICE, _gpu(asked))
        return copy

    patches.replace(storage, "device", property(device_of))
    patches.replace(storage, "is_cuda", property(lambda own: own.device.type == "cuda"))
    patches.replace(storage, "to", moved)
    patches.replace(
        storage,
        "cuda",
        lambda own, device=None, non_blocking=False: own.to(device="cuda" if device is None else device),
    )
    patches.replace(storage, "cpu", lambda own: own.to(device=_CPU))
    reducers = ForkingPickler._extra_reducers  # type: ignore[attr-defined]
    for kind, reduce in [*reducers.items()]:
        if reduce.__module__ == reductions.__name__:
            ForkingPickler.register(kind, _with_real_devices(reduce))


def _with_real_devices(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that sees real devices: processes share the CPU's memory."""

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        with real_devices():
            return function(*args)

    return call


class CudaTensorType(type):
    """The type of ``torch.cuda.FloatTensor`` and the like, which only a CUDA build can make."""

    dtype: torch.dtype
    on_cpu: Any

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        """A tensor on the current GPU."""
        return cls.on_cpu(*args, **kwargs).cuda()

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, torch.Tensor) and instance.is_cuda and instance.dtype == cls.dtype


def _install_tensor_types(patches: Patches) -> None:
    names = [name for name in vars(torch.cuda) if name.endswith("Tensor") and hasattr(torch, name)]
    for name in names:
        on_cpu = getattr(torch, name)
        made = CudaTensorType(name, (), {"__module__": "torch.cuda", "dtype": on_cpu.dtype, "on_cpu": on_cpu})
        patches.replace(torch.cuda, name, made)
    patches.wrap(torch, "set_default_tensor_type", _default_type)


def _default_type(choose: Callable[[Any], None]) -> Callable[[Any], None]:
    @functools.wraps(choose)
    def set_default_tensor_type(kind: Any) -> None:
        name = kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__name__}"
        choose(name.replace("torch.cuda.", "torch.", 1))
        torch.set_default_device("cuda" if name.startswith("torch.cuda.") else None)

    return set_default_tensor_type
