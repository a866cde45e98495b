"""Runs a dry run's program in a patched torch: its modes, in all threads, files in the run's folder, no compiler.

:func:`use_lazy_shards` has FSDP2 make only the shards that a rank uses: of hundreds, its own one and the size of the
first. Where tensors have no memory, a rank of a large job would spend most of its time on the others.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any, overload

import torch
import torch.testing
from torch import nn
from torch.nn import attention
from torch.utils.data import DataLoader

from simcoll.core.patches import Patches
from simcoll.dryrun.rank.fake_cuda import register_operators
from simcoll.dryrun.rank.fake_device import FakeDevices
from simcoll.dryrun.rank.fake_tensors import FakeTensors
from simcoll.dryrun.rank.saved_files import redirect_checkpoints, redirect_files
from simcoll.dryrun.rank.taint import TaintTracker
from simcoll.dryrun.rank.tensor_marks import tensors_in
from simcoll.dryrun.rank.torch_modes import FunctionMode, OperatorMode

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
    folder: Path | None = None,
    waits: bool = False,
) -> Iterator[None]:
    """Run a program with these fake GPUs, and with tensors without memory if ``fake_tensors``.

    Files that it saves go to ``folder``; with ``waits`` a load waits for a file that another rank saves.
    """
    fakes = FakeTensors() if fake_tensors else None
    if fakes is not None:
        patches.wrap(nn.Parameter, "__new__", functools.partial(_without_memory, fakes))
        patches.wrap(DataLoader, "__init__", _without_workers)
    if folder is not None:
        redirect_files(patches, folder, waits=waits, loaded=None if fakes is None else fakes.loaded)
        redirect_checkpoints(patches, folder)
    patches.wrap(torch, "compile", _with_eager_backend)
    torch.compiler.set_stance("force_eager")
    patches.wrap(torch.testing, "assert_close", functools.partial(_trusting_tainted, taint))
    operators = None if devices is None else register_operators()
    if devices is not None:
        _allow_any_attention(patches)

    def enter() -> ExitStack:
        stack = ExitStack()
        stack.enter_context(FunctionMode(devices, taint))
        stack.enter_context(OperatorMode(devices) if fakes is None else OperatorMode(devices, fakes))
        return stack

    patches.wrap(threading.Thread, "_bootstrap_inner", functools.partial(_in_modes, enter))
    with enter():
        yield
    del operators


def _without_memory(fakes: FakeTensors, made: Callable[..., Any]) -> Callable[..., Any]:
    """Make every parameter without memory, however small: a model's parameters are used together."""

    def new(cls: Any, data: torch.Tensor | None = None, requires_grad: bool = True) -> Any:
        return made(cls, None if data is None else fakes.without_memory(data), requires_grad)

    return new


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
    """Let ``torch.testing`` assume that tainted values are what is expected."""

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
