"""Imports what training scripts import, before ranks are forked: each of them then has it at once."""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import os
import sys
from pathlib import Path

from simcoll.dryrun.rank.settings import DryRun
from simcoll.errors import BAD_INPUT
from simcoll.launch.preconditions import PreconditionError

_GIB = 1 << 30
_LEAST_FREE = 1 << 28
"""Address space that a rank needs beyond that of a process with torch."""

_MODULES = (
    "torch.distributed.device_mesh",
    "torch.distributed.fsdp",
    "torch.distributed.tensor.parallel",
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
    atexit.register(thaw)


def thaw() -> None:
    """Undo the freezing before the interpreter ends, where nanobind would print all frozen objects as leaked.

    That is so where triton is imported, which is bound with it. Elsewhere the last collection need not search it all.
    """
    if "triton" in sys.modules:
        gc.unfreeze()


def import_for_ranks(dry_run: DryRun) -> None:
    """Import what ranks need; raises :class:`PreconditionError` where their memory is not enough for that alone."""
    warm_up()
    own = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    if dry_run.memory is not None and dry_run.memory < own + _LEAST_FREE:
        raise PreconditionError(
            BAD_INPUT,
            f"--memory {dry_run.memory / _GIB:.3g}: torch alone takes {own / _GIB:.2f} GiB of address space; "
            f"give {(own + 4 * _LEAST_FREE) / _GIB:.1f} or more",
        )
