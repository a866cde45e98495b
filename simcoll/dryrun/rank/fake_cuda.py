"""A fake ``torch.cuda`` for this process: its functions answer, and there is no GPU behind them.

Every function of torch.cuda, torch.accelerator and their modules returns an empty value of its declared return type: 0
for a number, a mapping with 0 for every key, None otherwise. A table has the functions whose answers programs use. The
operators of synchronised batch normalisation, which torch has for GPUs only, get CPU implementations.

Streams and events of a fake device add their waits to a :class:`DeviceOrder`. They replace the streams of torch.cpu,
which do nothing so that code for any device runs (FSDP2 does), and the fake streams of torch.cuda.
"""

from __future__ import annotations

import collections
import contextlib
import inspect
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from simcoll.core.patches import Patches
from simcoll.dryrun.rank.fake_attention import register_attention
from simcoll.dryrun.rank.fake_device import FakeDevices, install_fake_devices
from simcoll.pricing.device_ops import DeviceOrder, Key, Reached

_KEY = "CompositeExplicitAutograd"


def _per_channel(values: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Values per channel, reshaped to broadcast over a batch."""
    return values.reshape(1, -1, *[1] * (like.dim() - 2))


def _dims_but_channels(tensor: torch.Tensor) -> list[int]:
    return [dimension for dimension in range(tensor.dim()) if dimension != 1]


def _stats(batch: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    values, dimensions = batch.float(), _dims_but_channels(batch)
    return values.mean(dimensions), (values.var(dimensions, unbiased=False) + eps).rsqrt()


def _gathered(
    batch: torch.Tensor,
    mean: torch.Tensor,
    invstd: torch.Tensor,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    momentum: float,
    eps: float,
    counts: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    weights = (counts / counts.sum()).reshape(-1, 1).to(mean.dtype)
    total = (mean * weights).sum(0)
    var = ((invstd.pow(-2) - eps + (mean - total).square()) * weights).sum(0)
    for running, value in ((running_mean, total), (running_var, var)):
        if running is not None:
            running.mul_(1 - momentum).add_(value.to(running.dtype) * momentum)
    return total, (var + eps).rsqrt()


def _elements(batch: torch.Tensor, weight: Any, bias: Any, mean: Any, invstd: Any, eps: float) -> torch.Tensor:
    values = (batch.float() - _per_channel(mean, batch)) * _per_channel(invstd, batch)
    if weight is not None:
        values = values * _per_channel(weight, batch) + (0 if bias is None else _per_channel(bias, batch))
    return values.to(batch.dtype)


def _reduced(
    gradient: torch.Tensor, batch: torch.Tensor, mean: Any, invstd: Any, weight: Any, *wanted: bool
) -> tuple[torch.Tensor, ...]:
    dimensions = _dims_but_channels(batch)
    sums = gradient.float().sum(dimensions)
    products = (gradient.float() * (batch.float() - _per_channel(mean, batch))).sum(dimensions)
    dtype = batch.dtype if weight is None else weight.dtype
    return sums, products, (products * invstd).to(dtype), sums.to(dtype)


def _backward(
    gradient: torch.Tensor,
    batch: torch.Tensor,
    mean: Any,
    invstd: Any,
    weight: Any,
    sums: torch.Tensor,
    products: torch.Tensor,
    counts: torch.Tensor,
) -> torch.Tensor:
    total = counts.sum()
    centred = (batch.float() - _per_channel(mean, batch)) * _per_channel(invstd.square() * products / total, batch)
    values = (gradient.float() - _per_channel(sums / total, batch) - centred) * _per_channel(invstd, batch)
    return (values if weight is None else values * _per_channel(weight, batch)).to(batch.dtype)


def register_operators() -> torch.library.Library:
    """Register the operators; they stay as long as the returned library lives."""
    library = torch.library.Library("aten", "IMPL")
    library.impl("batch_norm_stats", _stats, _KEY)
    library.impl("batch_norm_gather_stats_with_counts", _gathered, _KEY)
    library.impl("batch_norm_elemt", _elements, _KEY)
    library.impl("batch_norm_backward_reduce", _reduced, _KEY)
    library.impl("batch_norm_backward_elemt", _backward, _KEY)
    register_attention(library)
    return library


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


def install_fake_cuda(patches: Patches, count: int) -> FakeDevices:
    """Let torch report ``count`` GPUs from now on."""
    devices = FakeDevices(count)
    answers = _answers(devices)
    for name in _MODULES:
        if (module := _module(f"cuda{name}")) is not None:
            _replace_functions(patches, module, answers)
    _replace_functions(patches, torch.accelerator, {**answers, **_accelerator(devices)})
    _fake_cuda_build(patches, devices)
    for name, copy in _COPIES.items():
        patches.put(torch._C, name, copy)
    for path in ("parallel", "parallel.data_parallel", "parallel.parallel_apply"):
        patches.replace(sys.modules[f"torch.nn.{path}"], "parallel_apply", _applied_in_turn)
    patches.wrap(torch.amp.autocast_mode.autocast, "__init__", _casting_on_cpu)
    install_fake_devices(patches, devices)
    return devices


def _module(path: str) -> ModuleType | None:
    found: Any = torch
    for name in path.split("."):
        found = getattr(found, name, None)
    return found if isinstance(found, ModuleType) else None


def _replace_functions(patches: Patches, module: ModuleType, answers: dict[str, Any]) -> None:
    for name, value in list(vars(module).items()):
        if name in answers:
            answer = answers[name]
            patches.replace(module, name, _as_called(value, answer) if isinstance(value, FunctionType) else answer)
        elif not name.startswith("_") and isinstance(value, FunctionType) and _is_of_torch(value):
            patches.replace(module, name, _by_type(value))


def _as_called(function: FunctionType, answer: Callable[..., Any]) -> Callable[..., Any]:
    """The answer in the place of a function of torch, with that one's parameters, by place or by name."""
    signature = inspect.signature(function)

    def call(*args: Any, **kwargs: Any) -> Any:
        return answer(*(signature.bind(*args, **kwargs).args if kwargs else args))

    return call


def _is_of_torch(function: FunctionType) -> bool:
    return function.__module__.startswith(("torch.cuda", "torch.accelerator"))


def _by_type(function: FunctionType) -> Callable[..., Any]:
    """A function that returns an empty value of the return type that ``function`` declares."""
    returned = inspect.signature(function).return_annotation
    name = getattr(returned, "__name__", str(returned)).split("[")[0].split(".")[-1]
    make = _BY_TYPE.get(name, lambda: None)
    return lambda *args, **kwargs: make()


class FakeCudaObject:
    """A fake object of CUDA's: a context manager whose every method does nothing."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.device = torch.device("cuda", torch.cuda.current_device())

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *exception: object) -> None:
        """Do nothing: entering has set nothing up."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: None

    def query(self) -> bool:
        """True: all its work is done."""
        return True


class FakeCudaStream(FakeCudaObject):
    """A fake stream: whatever is launched on it has completed."""

    def __init__(self, device: Any = None, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        if (index := getattr(torch.device(device or 0), "index", None)) is not None and device is not None:
            self.device = torch.device("cuda", index)

    cuda_stream = native_handle = stream_id = priority = 0

    @property
    def device_index(self) -> int:
        """The number of its GPU."""
        return self.device.index or 0

    @property
    def device_type(self) -> int:
        """The number of c10's type of device."""
        return int(self.device.type == "cuda")

    def record_event(self, event: Any = None) -> Any:
        """An event that has completed."""
        return event or FakeCudaEvent()


class FakeCudaEvent(FakeCudaObject):
    """A fake event, which has completed."""

    cuda_event = event_id = 0

    def elapsed_time(self, end: object) -> float:
        """One millisecond between any two events, since programs divide by it."""
        return 1.0


def _answers(devices: FakeDevices) -> dict[str, Any]:
    properties = SimpleNamespace(
        name=GPU,
        major=_CAPABILITY[0],
        minor=_CAPABILITY[1],
        total_memory=_MEMORY,
        multi_processor_count=132,
        warp_size=32,
        is_integrated=False,
    )
    classes = dict.fromkeys(("CUDAGraph", "graph", "MemPool", "CUDAPluggableAllocator", "GreenContext"), FakeCudaObject)
    return {
        **classes,
        **_streams(devices),
        **dict.fromkeys(("Stream", "ExternalStream"), FakeCudaStream),
        "stream": torch.cuda.StreamContext,
        "Event": FakeCudaEvent,
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


def _streams(devices: FakeDevices) -> dict[str, Any]:
    default = FakeCudaStream.__new__(FakeCudaStream)
    default.device = torch.device("cuda", devices.current)
    current = [default]

    def use(stream: Any) -> None:
        current[:] = [stream or default]

    return {"current_stream": lambda *args: current[0], "default_stream": lambda *args: default, "set_stream": use}


def _always(value: object) -> Callable[..., object]:
    return lambda *args, **kwargs: value


def _on_gpus(tensor: torch.Tensor, gpus: Sequence[int]) -> tuple[torch.Tensor, ...]:
    return tuple(tensor.to(torch.device("cuda", gpu)) for gpu in gpus)


def _on_gpus_coalesced(
    tensors: Sequence[torch.Tensor], gpus: Sequence[int], buffer_size: int
) -> list[list[torch.Tensor]]:
    return [[tensor.to(torch.device("cuda", gpu)) for tensor in tensors] for gpu in gpus]


def _scattered(
    tensor: torch.Tensor, gpus: Sequence[int], sizes: Sequence[int] | None, dim: int = 0, streams: object = None
) -> tuple[torch.Tensor, ...]:
    parts = tensor.chunk(len(gpus), dim) if sizes is None else tensor.split(list(sizes), dim)
    return tuple(part.to(torch.device("cuda", gpu)) for part, gpu in zip(parts, gpus, strict=False))


def _joined(tensors: Sequence[torch.Tensor], dim: int, gpu: int | None = None) -> torch.Tensor:
    to = torch.device("cpu") if gpu == -1 else torch.device("cuda", gpu or 0)
    return torch.cat([tensor.to(to) for tensor in tensors], dim)


_COPIES: dict[str, Callable[..., Any]] = {
    "_broadcast": _on_gpus,
    "_broadcast_coalesced": _on_gpus_coalesced,
    "_scatter": _scattered,
    "_gather": _joined,
}
"""What torch.cuda.comm copies between the GPUs of one process, DataParallel too; builds for CPUs lack it."""


def _applied_in_turn(
    modules: Sequence[torch.nn.Module],
    inputs: Sequence[Any],
    kwargs_tup: Sequence[dict[str, Any]] | None = None,
    devices: Sequence[Any] | None = None,
) -> list[Any]:
    """Apply each module on its GPU as ``parallel_apply`` does, without its threads: ranks of a dry run have one."""
    found = []
    for place, (module, given) in enumerate(zip(modules, inputs, strict=True)):
        values = given if isinstance(given, list | tuple) else (given,)
        with torch.cuda.device(None if devices is None else devices[place]):
            found.append(module(*values, **(kwargs_tup[place] if kwargs_tup else {})))
    return found


def _accelerator(devices: FakeDevices) -> dict[str, Any]:
    accelerator = torch.device("cuda")
    names = ("current_device_index", "current_device_idx")
    return {
        "current_accelerator": _always(accelerator),
        **dict.fromkeys(names, lambda: devices.current),
        **dict.fromkeys(("set_device_index", "set_device_idx"), lambda device: devices.use(device) and None),
        "device_index": torch.cuda.device,
        "get_memory_info": _always((_MEMORY, _MEMORY)),
    }


def _fake_cuda_build(patches: Patches, devices: FakeDevices) -> None:
    """Replace the other attributes of torch by which programs tell a CUDA build from a CPU build."""
    patches.replace(torch._C, "_get_accelerator", lambda *args: torch.device("cuda"))
    patches.replace(torch.version, "cuda", _CUDA)
    for module in (dist, distributed_c10d):
        patches.replace(module, "is_nccl_available", _always(True))
        vars(module).update(_NCCL_AVAILABLE=True)
        vars(module).setdefault("ProcessGroupNCCL", SimpleNamespace(Options=FakeCudaObject))
    patches.replace(torch, "Stream", FakeCudaStream)
    patches.replace(torch, "Event", FakeCudaEvent)
    made = torch.Generator

    class Generator(made):  # type: ignore[misc,valid-type]
        """A random number generator on the CPU that reports the device it was made for."""

        def __new__(cls, device: Any = None) -> Any:
            return super().__new__(cls)

        def __init__(self, device: Any = None) -> None:
            self._device = devices.of(device) or torch.device("cpu")

        @property
        def device(self) -> torch.device:
            """The device that it was made for."""
            return self._device

    patches.replace(torch, "Generator", Generator)


def _casting_on_cpu(begin: Callable[..., None]) -> Callable[..., None]:
    """Let CUDA's automatic mixed precision cast tensors in the CPU's memory."""

    def __init__(self: Any, device_type: str, dtype: Any = None, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        if torch.device(device_type).type == "cuda":
            device_type, dtype = "cpu", dtype or torch.float16
        begin(self, device_type, dtype, *args, **kwargs)

    return __init__


class Streams:
    """The streams of one rank: the current one, and the order that all of them add to."""

    def __init__(self, order: DeviceOrder) -> None:
        self.order = order
        self.default = OrderedStream(self)
        self.current = self.default

    def launch(self, key: Key, *, waits: bool) -> None:
        """Launch a call on the current stream; with ``waits`` the stream then waits for its end."""
        stream = self.current
        self.order.launch(key, None if stream is self.default else stream.reached)
        if waits:
            self.wait(key)

    def wait(self, key: Key) -> None:
        """Let the current stream wait for a call."""
        self.current.wait_for(Reached(0, frozenset((key,))))

    def install(self, patches: Patches, module: ModuleType) -> None:
        """Replace the streams of torch's module for a kind of device."""
        streams = self

        class Stream(OrderedStream):
            def __init__(self, *args: Any, **kwargs: Any) -> None:
                super().__init__(streams)

        class Event(OrderedEvent):
            def __init__(self, *args: Any, **kwargs: Any) -> None:
                super().__init__(streams)

        for name, value in {**self._functions(), "Stream": Stream, "Event": Event}.items():
            patches.replace(module, name, value)

    def _functions(self) -> dict[str, Any]:
        """The functions of torch's modules that read and change the current stream."""
        enter = lambda stream: stream or nullcontext()  # noqa: E731
        return {
            "current_stream": lambda device=None: self.current,
            "default_stream": lambda device=None: self.default,
            "set_stream": lambda stream: setattr(self, "current", stream or self.default),
            "stream": enter,
            "StreamContext": enter,
            "synchronize": lambda device=None: self.default.synchronize(),
        }


class OrderedStream(FakeCudaStream):
    """A stream; the default one has completed whatever the order holds."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._reached = Reached()
        self._before: list[Any] = []
        cuda = torch.cuda.is_available()
        self.device = torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu")

    def __enter__(self) -> OrderedStream:
        self._before.append(self._streams.current)
        self._streams.current = self
        return self

    def __exit__(self, *exception: object) -> None:
        self._streams.current = self._before.pop()

    @property
    def reached(self) -> Reached:
        """The calls that it has waited for."""
        return self._streams.order.here() if self is self._streams.default else self._reached

    def wait_for(self, reached: Reached) -> None:
        """Wait for these calls."""
        if self is self._streams.default:
            self._streams.order.wait(reached.calls)
        else:
            self._reached = self._reached.joined(reached)

    def wait_stream(self, stream: Any) -> None:
        """Wait for all that was launched on another stream so far."""
        if isinstance(stream, OrderedStream):
            self.wait_for(stream.reached)

    def wait_event(self, event: Any) -> None:
        """Wait for an event."""
        if isinstance(event, OrderedEvent):
            self.wait_for(event.reached)

    def record_event(self, event: Any = None) -> Any:
        """An event after all that was launched on the stream so far."""
        found = event if isinstance(event, OrderedEvent) else OrderedEvent(self._streams)
        found.record(self)
        return found

    def synchronize(self) -> None:
        """Let the host wait for all that was launched on the stream."""
        self._streams.default.wait_for(self.reached)
        self._streams.order.hold()


class OrderedEvent(FakeCudaEvent):
    """An event at a place in a stream."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self.reached = Reached()

    def record(self, stream: Any = None) -> None:
        """Move the event behind all that was launched on a stream so far."""
        self.reached = (stream if isinstance(stream, OrderedStream) else self._streams.current).reached

    def wait(self, stream: Any = None) -> None:
        """Let a stream wait for the event."""
        (stream if isinstance(stream, OrderedStream) else self._streams.current).wait_for(self.reached)

    def synchronize(self) -> None:
        """Let the host wait for the event."""
        self._streams.default.wait_for(self.reached)
        self._streams.order.hold()
