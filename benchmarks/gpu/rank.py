"""One rank of a job of `gpu_check`: makes the checks that it is told, in order, and writes down how each one ended.

``python -m benchmarks.gpu.rank JOB.json`` with the launcher's variables set. It appends JSON lines to a file of its
own: a check's name when it begins, the outcome when it has ended, so that a rank that is killed says in which check.
The first check that fails ends the rank: after it nothing is known of the group.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

END = "the job ends"
"""What stands for the end of the job in the place of a check's name."""

TIMEOUT = timedelta(seconds=90)
FAILED_EXIT_CODE = 70


@dataclass(frozen=True, slots=True)
class Job:
    """What the ranks of one job are told."""

    checks: tuple[str, ...]
    backend: str
    devices: tuple[str, ...]
    mode: str
    start: str
    folder: str

    @property
    def boxes(self) -> Path:
        """Where the black boxes go."""
        return Path(self.folder) / "boxes"

    def notes(self, rank: int) -> Path:
        """What a rank writes."""
        return Path(self.folder) / f"rank{rank}.jsonl"


def main(path: str) -> None:
    """Join the group, make the checks, leave."""
    job = Job(**{name: _frozen(value) for name, value in json.loads(Path(path).read_text()).items()})
    with job.notes(int(os.environ["RANK"])).open("w", buffering=1) as file:

        def note(**what: object) -> None:
            file.write(json.dumps(what) + "\n")

        _enable(job)
        place = _join(job)
        _make(job.checks, place, note)
        note(begin=END)
        _leave()
        note(end=END, outcome="ok")


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _enable(job: Job) -> None:
    if job.mode != "off":
        import simcoll

        simcoll.enable(mode=job.mode, out=job.boxes)


def _join(job: Job) -> Any:
    import torch
    import torch.distributed as dist

    from benchmarks.gpu.check import Place
    from benchmarks.gpu.settings import pretend_hosts

    pretend_hosts()
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device(job.devices[rank])
    if device.type == "cuda":
        torch.cuda.set_device(device)
    backend = "cpu:gloo,cuda:nccl" if job.start == "mixed" else job.backend
    dist.init_process_group(backend, timeout=TIMEOUT, device_id=device if job.start == "eager" else None)
    return Place(rank, size, device, job.backend, job.mode, job.boxes)


def _make(names: tuple[str, ...], place: Any, note: Callable[..., None]) -> None:
    from benchmarks.gpu.check import SkippedCheck
    from benchmarks.gpu.checks import every_check

    checks = {check.name: check for check in every_check()}
    for name in names:
        note(begin=name)
        run, begun = checks[name].run, time.monotonic()
        assert run is not None, name
        try:
            figures = run(place)
        except SkippedCheck as reason:
            note(end=name, outcome="skipped", reason=str(reason))
        except Exception as error:
            traceback.print_exc()
            note(end=name, outcome="failed", reason=_said(error))
            sys.stderr.flush()
            os._exit(FAILED_EXIT_CODE)
        else:
            seconds = time.monotonic() - begun
            note(end=name, outcome="ok", figures=dict(figures or {}), seconds=round(seconds, 2))


def _said(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]:.300}"


def _leave() -> None:
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
