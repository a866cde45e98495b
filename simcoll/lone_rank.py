"""What happens in a process that is forked to be one rank of a dry run, from its beginning to its end."""

from __future__ import annotations

import atexit
import contextlib
import os
import resource
import runpy
import signal
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from simcoll.activation import enable
from simcoll.backends.outcome import exit_code
from simcoll.lone_program import surrounded
from simcoll.lone_torch import be_alone
from simcoll.pipeline_metadata import StageMetadata, know_neighbours
from simcoll.pretended_cuda import pretend_cuda
from simcoll.pretended_device import Devices
from simcoll.received_values import ReceivedValues

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True, slots=True)
class DryRun:
    """What every rank of a dry run is told. ``memory`` is in bytes, None for no limit; ``steps`` None for no end.

    With ``cuda`` each node pretends to have a GPU for each of its ranks.
    """

    script: Path
    arguments: Sequence[str]
    world_size: int
    local_world_size: int
    folder: Path
    steps: int | None = None
    fake_tensors: bool = False
    memory: int | None = None
    cuda: bool = True


def log_name(rank: int) -> str:
    """The file that a rank's own output goes to."""
    return f"rank{rank:05d}.log"


def become_lone_rank(dry_run: DryRun, rank: int) -> NoReturn:
    """Run the script as ``rank``, and end as an interpreter does."""
    code = 1
    try:
        devices, received = _begin(dry_run, rank)
        with surrounded(devices, received, fake_tensors=dry_run.fake_tensors, folder=dry_run.folder, waits=rank > 0):
            runpy.run_path(str(dry_run.script), run_name="__main__")
        code = 0
    except BaseException as error:
        code = exit_code(error)
        if not isinstance(error, SystemExit):
            sys.excepthook(*sys.exc_info())
        elif isinstance(error.code, str):
            print(error.code, file=sys.stderr)  # noqa: T201
    finally:
        # The interpreter's end: threads first, then exit functions, whatever these raise.
        with contextlib.suppress(Exception):
            threading._shutdown()  # type: ignore[attr-defined]
            atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(code)


def _begin(dry_run: DryRun, rank: int) -> tuple[Devices | None, ReceivedValues]:
    atexit._clear()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is the parent's, which ends its ranks
    log = os.open(dry_run.folder / log_name(rank), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    for number in (1, 2):
        os.dup2(log, number)
    os.environ.update(_environment(dry_run, rank))
    sys.argv = [str(dry_run.script), *dry_run.arguments]
    sys.path[0] = str(dry_run.script.resolve().parent)
    sys.excepthook = sys.__excepthook__
    if dry_run.memory is not None:
        resource.setrlimit(resource.RLIMIT_AS, (dry_run.memory, dry_run.memory))
    # The threads of the parent's pool are not here, and ranks share the cores anyway.
    torch.set_num_threads(1)
    devices = pretend_cuda(dry_run.local_world_size) if dry_run.cuda else None
    enable("record", dry_run.folder)
    received = be_alone(rank, dry_run.world_size)
    know_neighbours(StageMetadata(dry_run.folder, rank, lambda other: (dry_run.folder / log_name(other)).exists()))
    if dry_run.steps is not None:
        _end_after(dry_run.steps)
    return devices, received


def _environment(dry_run: DryRun, rank: int) -> dict[str, str]:
    """What torchrun tells a rank."""
    local = dry_run.local_world_size
    nodes = -(-dry_run.world_size // local)
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(dry_run.world_size),
        "LOCAL_RANK": str(rank % local),
        "LOCAL_WORLD_SIZE": str(local),
        "GROUP_RANK": str(rank // local),
        "GROUP_WORLD_SIZE": str(nodes),
        "ROLE_RANK": str(rank),
        "ROLE_WORLD_SIZE": str(dry_run.world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_RUN_ID": "preflight",
        **dict.fromkeys(_THREAD_VARIABLES, "1"),
    }


def _end_after(steps: int) -> None:
    """End the program as if it had come to its end, when an optimiser has made so many steps."""
    made: dict[int, int] = {}

    def count(optimizer: Any, args: Any, kwargs: Any) -> None:
        made[id(optimizer)] = made.get(id(optimizer), 0) + 1
        if made[id(optimizer)] >= steps:
            raise SystemExit(0)

    register_optimizer_step_post_hook(count)
