"""Pretends in this process that torch has CUDA: ``torch.cuda`` answers, and nothing behind it exists.

Every function of torch.cuda, torch.accelerator and their modules answers by the type that it says it returns: a number
is 0, a mapping has 0 for every name, None does nothing. A table has those whose answers programs reckon with.
"""

from __future__ import annotations

import collections
import contextlib
import inspect
from collections.abc import Callable
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from simcoll.dryrun.rank.fake_device import Devices, tell_pretended_devices

GPU = "simcoll dry run"
_MEMORY = 80 << 30
_CAPABILITY = (9, 0)
_NCCL = (2, 27, 5)
_CUDA = "12.8"
_MODULES = ("", ".memory", ".random", ".nvtx", ".streams", ".graphs", ".profiler", ".nccl")
_BY_TYPE: dict[str, Callable[[], object]] = {
    "int": int,
    "float": float,
    "bool": bool,
    "str": str,
    "dict": lambda: collections.defaultdict(int),
    "OrderedDict": lambda: collections.defaultdict(int),
    "list": list,
    "tuple": lambda: (0, 0),
}


def pretend_cuda(count: int) -> Devices:
    """Have torch say from now on that there are ``count`` GPUs."""
    devices = Devices(count)
    answers = _answers(devices)
    for name in _MODULES:
        if (module := _module(f"cuda{name}")) is not None:
            _answer(module, answers)
    _answer(torch.accelerator, {**answers, **_accelerator(devices)})
    _name_the_build(devices)
    _cast_as_cpu()
    tell_pretended_devices(devices)
    return devices


def _module(path: str) -> ModuleType | None:
    found: Any = torch
    for name in path.split("."):
        found = getattr(found, name, None)
    return found if isinstance(found, ModuleType) else None


def _answer(module: ModuleType, answers: dict[str, Any]) -> None:
    for name, value in list(vars(module).items()):
        if name in answers:
            setattr(module, name, answers[name])
        elif not name.startswith("_") and isinstance(value, FunctionType) and _is_torchs(value):
            setattr(module, name, _by_type(value))


def _is_torchs(function: FunctionType) -> bool:
    return function.__module__.startswith(("torch.cuda", "torch.accelerator"))


def _by_type(function: FunctionType) -> Callable[..., Any]:
    """A function that does nothing and gives an empty value of the type that ``function`` says it returns."""
    returned = inspect.signature(function).return_annotation
    name = getattr(returned, "__name__", str(returned)).split("[")[0].split(".")[-1]
    make = _BY_TYPE.get(name, lambda: None)
    return lambda *args, **kwargs: make()


class Pretended:
    """Stands in for an object of CUDA's: it can be entered, and whatever it is told to do is done."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.device = torch.device("cuda", torch.cuda.current_device())

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *exception: object) -> None:
        """Nothing was set up."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: None

    def query(self) -> bool:
        """All its work is done."""
        return True


class PretendedStream(Pretended):
    """Stands in for a stream: what is told to run on it has run."""

    cuda_stream = stream_id = device_index = priority = 0

    def record_event(self, event: Any = None) -> Any:
        """An event that has come."""
        return event or PretendedEvent()


class PretendedEvent(Pretended):
    """Stands in for an event: it has come."""

    cuda_event = event_id = 0

    def elapsed_time(self, end: object) -> float:
        """A millisecond lies between any two: programs divide by it."""
        return 1.0


def _answers(devices: Devices) -> dict[str, Any]:
    properties = SimpleNamespace(
        name=GPU,
        major=_CAPABILITY[0],
        minor=_CAPABILITY[1],
        total_memory=_MEMORY,
        multi_processor_count=132,
        warp_size=32,
        is_integrated=False,
    )
    classes = dict.fromkeys(("CUDAGraph", "graph", "MemPool", "CUDAPluggableAllocator", "GreenContext"), Pretended)
    return {
        **classes,
        **_streams(devices),
        **dict.fromkeys(("Stream", "ExternalStream"), PretendedStream),
        "stream": torch.cuda.StreamContext,
        "Event": PretendedEvent,
        **dict.fromkeys(("is_available", "is_bf16_supported", "is_tf32_supported"), _always(True)),
        "is_initialized": lambda: devices.initialised,
        "_is_in_bad_fork": _always(False),
        "_lazy_init": _always(None),
        "_lazy_call": _always(None),
        "device_count": lambda: devices.count,
        "current_device": lambda: devices.current,
        **dict.fromkeys(("set_device", "_exchange_device", "_maybe_exchange_device"), devices.use),
        "get_device_name": _always(GPU),
        "get_device_capability": _always(_CAPABILITY),
        "get_device_properties": _always(properties),
        "get_arch_list": _always(["sm_90"]),
        "mem_get_info": _always((_MEMORY, _MEMORY)),
        "get_rng_state": lambda *args: torch.zeros(16, dtype=torch.uint8),
        "get_rng_state_all": lambda: [torch.zeros(16, dtype=torch.uint8) for _ in range(devices.count)],
        "make_graphed_callables": lambda callables, *args, **kwargs: callables,
        "range": lambda *args, **kwargs: contextlib.nullcontext(),
        "profile": contextlib.nullcontext,
        "use_mem_pool": lambda *args, **kwargs: contextlib.nullcontext(),
        "version": _always(_NCCL),
    }


def _streams(devices: Devices) -> dict[str, Any]:
    default = PretendedStream.__new__(PretendedStream)
    default.device = torch.device("cuda", devices.current)
    current = [default]

    def use(stream: Any) -> None:
        current[:] = [stream or default]

    return {"current_stream": lambda *args: current[0], "default_stream": lambda *args: default, "set_stream": use}


def _always(value: object) -> Callable[..., object]:
    return lambda *args, **kwargs: value


def _accelerator(devices: Devices) -> dict[str, Any]:
    accelerator = torch.device("cuda")
    names = ("current_device_index", "current_device_idx")
    return {
        "current_accelerator": _always(accelerator),
        **dict.fromkeys(names, lambda: devices.current),
        **dict.fromkeys(("set_device_index", "set_device_idx"), lambda device: devices.use(device) and None),
        "device_index": torch.cuda.device,
        "get_memory_info": _always((_MEMORY, _MEMORY)),
    }


def _name_the_build(devices: Devices) -> None:
    """What else of torch tells a build with CUDA from another."""
    module: Any
    core: Any = torch._C
    core._get_accelerator = lambda *args: torch.device("cuda")
    version: Any = torch.version
    version.cuda = _CUDA
    for module in (dist, distributed_c10d):
        module.is_nccl_available = _always(True)
        module._NCCL_AVAILABLE = True
        if not hasattr(module, "ProcessGroupNCCL"):
            module.ProcessGroupNCCL = SimpleNamespace(Options=Pretended)
    named: Any = torch
    named.Stream, named.Event = PretendedStream, PretendedEvent
    made = torch.Generator

    class Generator(made):  # type: ignore[misc,valid-type]
        """A generator of random numbers, whatever device it is for."""

        def __new__(cls, device: Any = None) -> Any:
            return super().__new__(cls)

        def __init__(self, device: Any = None) -> None:
            self._device = devices.of(device) or torch.device("cpu")

        @property
        def device(self) -> torch.device:
            """The device that it is for."""
            return self._device

    named.Generator = Generator


def _cast_as_cpu() -> None:
    """Have automatic mixed precision of CUDA cast what is in the CPU's memory."""
    autocast: Any = torch.amp.autocast_mode.autocast
    begin = autocast.__init__

    def __init__(self: Any, device_type: str, dtype: Any = None, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        if torch.device(device_type).type == "cuda":
            device_type, dtype = "cpu", dtype or torch.float16
        begin(self, device_type, dtype, *args, **kwargs)

    autocast.__init__ = __init__
