"""Lets PyTorch's NCCL tests for two GPUs run on one, unedited: ``cuda:1`` and the number 1 mean ``cuda:0`` there.

Ranks may share a GPU from NCCL 2.30 where NCCL_MULTI_RANK_GPU_ENABLE says so, and with any NCCL where each has a host's
name of its own (NCCL_HOSTID).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

PLACED = {torch.Tensor.to, torch.Tensor.cuda}
"""Functions whose first argument after the tensor may be a device's number."""


class OneGpu(TorchFunctionMode):
    """Puts what goes to any GPU on the first one."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if "device" in kwargs:
            kwargs["device"] = on_the_first(kwargs["device"])
        if function in PLACED and len(args) > 1:
            args = (args[0], on_the_first(args[1]), *args[2:])
        return function(*args, **kwargs)


def on_the_first(place: Any) -> Any:
    """The first GPU in the place of any; what is none stays as it is."""
    if isinstance(place, bool) or place is None:
        return place
    if isinstance(place, int):
        return 0
    if isinstance(place, (str, torch.device)) and torch.device(place).type == "cuda":
        return torch.device("cuda", 0)
    return place


def run_rank(target: Callable[..., Any], rank: int, *args: Any, **kwargs: Any) -> Any:
    """A rank's process: where there is one GPU, it counts as two, each of which is the first."""
    if torch.cuda.device_count() == 1:
        torch.cuda.device_count = lambda: 2
        torch.cuda.set_device = lambda device: None
        if os.environ.get("SIMCOLL_CHECK_HOSTS"):
            os.environ["NCCL_HOSTID"] = f"simcoll-{rank}"
        with OneGpu():
            return target(rank, *args, **kwargs)
    return target(rank, *args, **kwargs)
