"""Imports what training scripts import, before ranks are forked: each of them then has it at once."""

from __future__ import annotations

import contextlib
import gc
import importlib

_MODULES = (
    "torch.distributed.device_mesh",
    "torch.distributed.fsdp",
    "torch.distributed.tensor.parallel",
    "torch.distributed.pipelining",
    "torch.distributed.checkpoint",
    "torch.nn.parallel",
    "torch._dynamo",
    "torch.optim",
    "torch.utils.data",
)


def warm_up() -> None:
    """Import these, as far as this torch has them, and keep their memory shared with the ranks to come."""
    for name in _MODULES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.freeze()
