"""Runs a program with tensors that have shapes and no memory; what torch.distributed reckons with stays real."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from inspect import isfunction
from typing import Any

import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.distributed import device_mesh, distributed_c10d
from torch.nn.parallel import distributed as ddp_module

_REAL = (
    "init_process_group",
    "new_group",
    "new_subgroups",
    "new_subgroups_by_enumeration",
    "all_gather_object",
    "gather_object",
    "send_object_list",
    "recv_object_list",
    "broadcast_object_list",
    "scatter_object_list",
)
"""What makes groups, and what carries objects: torch reads the tensors that it makes for these."""


def fake_tensors() -> AbstractContextManager[Any]:
    """Tensors that are made within have no memory; changes torch for the rest of the process."""
    module: Any
    for name in _REAL:
        _make_real(distributed_c10d, name)
    mesh = device_mesh.DeviceMesh
    for name, value in list(vars(mesh).items()):
        if isfunction(value) and name not in ("__hash__", "__eq__", "__repr__"):
            setattr(mesh, name, _with_real_tensors(value))
    _make_real(device_mesh, "init_device_mesh")
    module = ddp_module
    if hasattr(module, "_verify_param_shape_across_processes"):
        verify = module._verify_param_shape_across_processes
        module._verify_param_shape_across_processes = _with_real_tensors(verify)
    reducer: Any = dist.Reducer
    reducer._rebuild_buckets = _with_real_tensors(reducer._rebuild_buckets)
    return FakeTensorMode(allow_non_fake_inputs=True)


def _make_real(module: Any, name: str) -> None:
    """Replace a function wherever torch has it under its name: modules of torch import it from each other."""
    function = getattr(module, name, None)
    if function is None:
        return
    real = _with_real_tensors(function)
    for one in list(sys.modules.values()):
        if getattr(one, "__name__", "").startswith("torch.") and vars(one).get(name) is function:
            setattr(one, name, real)


def _with_real_tensors(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with unset_fake_temporarily():
            return function(*args, **kwargs)

    return call
