"""One rank of the benchmark of answers: steps of a small job until the rank that is to spoil it does so.

Started by ``answers.py`` under ``simcoll run``: ``answers_rank.py PROGRAM KIND RANK FOLDER``. Once the file ``go`` is
in the folder, the rank writes the time into ``happened`` there and hangs in its own code, is killed, or is slow from
then on. Rank 0 writes ``ready`` once the job has run for a while.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

_OWN_SECONDS = 0.02
_SLOW_SECONDS = 0.2
_STEPS_TO_BE_READY = 100


def training() -> Callable[[], None]:
    """A step of a small model under DistributedDataParallel."""
    layers = [torch.nn.Linear(64, 64) for _ in range(4)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batch = torch.ones(8, 64)

    def step() -> None:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()

    return step


def calls() -> Callable[[], None]:
    """A step of two collectives."""
    tensor = torch.ones(1000)

    def step() -> None:
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)

    return step


def spoil(kind: str, folder: Path) -> None:
    """Do once what the job is to be spoilt by, and write down when."""
    write(folder, "happened")
    if kind == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "hang":
        time.sleep(3600)


def write(folder: Path, name: str) -> None:
    """The time in a file of this name, whole or not at all."""
    part = folder / f"{name}.{os.getpid()}"
    part.write_text(str(time.time_ns()))
    part.rename(folder / name)


def main() -> None:
    """Make steps until the launcher ends this rank."""
    program, kind, spoilt, place = sys.argv[1:]
    folder = Path(place)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    step = training() if program == "ddp" else calls()
    slow, steps = 0.0, 0
    while True:
        steps += 1
        if rank == 0 and steps == _STEPS_TO_BE_READY:
            write(folder, "ready")
        time.sleep(_OWN_SECONDS + slow)
        if rank == int(spoilt) and not slow and (folder / "go").exists():
            spoil(kind, folder)
            slow = _SLOW_SECONDS
        step()


if __name__ == "__main__":
    main()
