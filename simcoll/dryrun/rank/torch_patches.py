"""What surrounds the program of a dry run: modes of torch, in its threads too, and no compiler."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.testing
from torch import nn
from torch.nn import attention
from torch.utils.data import DataLoader

from simcoll.dryrun.rank.fake_cuda_ops import register_operators
from simcoll.dryrun.rank.fake_device import FakeDevices
from simcoll.dryrun.rank.fake_tensors import FakeTensors
from simcoll.dryrun.rank.saved_files import keep_checkpoints, keep_files
from simcoll.dryrun.rank.taint import TaintTracker
from simcoll.dryrun.rank.tensor_marks import tensors_in
from simcoll.dryrun.rank.torch_modes import FunctionMode, OperatorMode


@contextmanager
def patched_torch(
    devices: FakeDevices | None,
    taint: TaintTracker,
    *,
    fake_tensors: bool,
    folder: Path | None = None,
    waits: bool = False,
) -> Iterator[None]:
    """Run a program with these GPUs pretended, and with tensors that have no memory; changes torch for good.

    What it saves goes to ``folder``; where ``waits`` it may load what another rank saves.
    """
    fakes = FakeTensors() if fake_tensors else None
    if fakes is not None:
        _make_parameters(fakes)
        _load_in_this_process()
    if folder is not None:
        keep_files(folder, waits=waits, loaded=None if fakes is None else fakes.loaded)
        keep_checkpoints(folder)
    _compile_nothing()
    _trust_assertions(taint)
    operators = None if devices is None else register_operators()
    if devices is not None:
        _allow_any_attention()

    def enter() -> ExitStack:
        stack = ExitStack()
        stack.enter_context(FunctionMode(devices, taint))
        stack.enter_context(OperatorMode(devices) if fakes is None else OperatorMode(devices, fakes))
        return stack

    _enter_in_threads(enter)
    with enter():
        yield
    del operators


def _make_parameters(fakes: FakeTensors) -> None:
    """Have every parameter be without memory, however small: those of a model go together."""
    parameter: Any = nn.Parameter
    made = parameter.__new__

    def new(cls: Any, data: torch.Tensor | None = None, requires_grad: bool = True) -> Any:
        return made(cls, None if data is None else fakes.without_memory(data), requires_grad)

    parameter.__new__ = new


def _load_in_this_process() -> None:
    """Have loaders of data start no workers: tensors without memory cannot be handed on."""
    loader: Any = DataLoader
    begin = loader.__init__

    @functools.wraps(begin)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        if kwargs.get("num_workers"):
            for name in ("num_workers", "prefetch_factor", "persistent_workers", "timeout", "multiprocessing_context"):
                kwargs.pop(name, None)
        begin(self, *args, **kwargs)

    loader.__init__ = __init__


def _trust_assertions(taint: TaintTracker) -> None:
    """Have ``torch.testing`` take unknown values for what is expected."""
    testing: Any = torch.testing
    compare = testing.assert_close

    @functools.wraps(compare)
    def assert_close(*args: Any, **kwargs: Any) -> None:
        if any(map(taint.is_tainted, tensors_in((*args, *kwargs.values())))):
            taint.note()
        else:
            compare(*args, **kwargs)

    testing.assert_close = assert_close


def _compile_nothing() -> None:
    """Have what is compiled run as it is written: the calls are the same, and no rank compiles for itself."""
    module: Any = torch
    compile_model = module.compile

    @functools.wraps(compile_model)
    def compile(model: Any = None, **kwargs: Any) -> Any:  # noqa: A001
        kwargs = {name: value for name, value in kwargs.items() if name in ("fullgraph", "dynamic")}
        return compile_model(model, backend="eager", **kwargs)

    module.compile = compile
    torch.compiler.set_stance("force_eager")


def _allow_any_attention() -> None:
    """Have a program choose kernels of attention that the CPU lacks."""
    modules: Any = (attention, torch.backends.cuda)
    for module, name in zip(modules, ("sdpa_kernel", "sdp_kernel"), strict=True):
        setattr(module, name, lambda *args, **kwargs: nullcontext())
    for name in ("enable_flash_sdp", "enable_mem_efficient_sdp", "enable_math_sdp", "enable_cudnn_sdp"):
        setattr(torch.backends.cuda, name, lambda enabled: None)


def _enter_in_threads(enter: Callable[[], ExitStack]) -> None:
    """Have every thread that starts from now on be in the modes, which are a thread's own."""
    thread: Any = threading.Thread
    begin = thread._bootstrap_inner

    def bootstrap(self: Any) -> None:
        with enter():
            begin(self)

    thread._bootstrap_inner = bootstrap
