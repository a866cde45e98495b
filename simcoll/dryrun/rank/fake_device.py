"""Fake GPUs for tensors: their memory is the CPU's, and a mark says which GPU the program has put them on.

The program sees the marked device; what runs within :func:`real_devices`, such as torch's own kernels, sees the CPU.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from simcoll.core.patches import Patches
from simcoll.dryrun.rank.tensor_marks import DEVICE, mark, put_mark

_CPU = torch.device("cpu")
_TO = ("device", "dtype", "non_blocking", "copy")

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
        """Whether the program has used a GPU: until then torch chooses that of LOCAL_RANK itself."""

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
        "pin_memory": lambda self, *args, **kwargs: self,
        "is_pinned": lambda self, *args, **kwargs: False,
        "record_stream": lambda self, stream: None,
        "type": _typed(torch.Tensor.type),
        "__deepcopy__": _copied(torch.Tensor.__deepcopy__),
    }
    for name, value in replacements.items():
        patches.replace(torch.Tensor, name, value)
    patches.replace(FakeTensor, "device", property(_faked_device(_fake_tensor_device)))
    patches.replace(torch, "load", _loading(torch.load, devices))
    patches.wrap(torch.nn.Module, "to", functools.partial(_moving_module, devices=devices))


def _faked_device(true: Callable[[Any], torch.device]) -> Callable[[Any], torch.device]:
    def device(tensor: torch.Tensor) -> torch.device:
        found = true(tensor)
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


def _moving_module(to: Callable[..., Any], *, devices: FakeDevices) -> Callable[..., Any]:
    """``Module.to`` that takes a number for a GPU: C++ would ask for CUDA."""

    @functools.wraps(to)
    def move(module: Any, *args: Any, **kwargs: Any) -> Any:
        if args and type(args[0]) is int:
            args = devices.of(args[0]), *args[1:]
        if type(kwargs.get("device")) is int:
            kwargs["device"] = devices.of(kwargs["device"])
        return to(module, *args, **kwargs)

    return move


def _original(wrapper: Callable[..., Any], wrapped: Callable[..., Any]) -> Callable[..., Any]:
    """Record what a wrapper wraps: a torch mode that gets the wrapper calls that, since the wrapper has run already."""
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


def _loading(load: Callable[..., Any], devices: FakeDevices) -> Callable[..., Any]:
    """``torch.load`` that leaves every storage on the CPU and marks its device."""

    @functools.wraps(load)
    def loading(file: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        if callable(map_location):
            return load(file, map_location, *args, **kwargs)

        def place(storage: Any, location: str) -> Any:
            mapped = map_location.get(location, location) if isinstance(map_location, Mapping) else map_location
            device = devices.of(location if mapped is None else mapped)
            setattr(storage, DEVICE, _gpu(device))
            return storage

        return load(file, place, *args, **kwargs)

    return loading
