"""One rank of `benchmarks.time_estimators`: asks both estimators for each call, and times it where that can be done.

``python -m benchmarks.time_estimator_rank JOB.json`` with the launcher's variables set; rank 0 prints rows of JSON.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import simcoll
from benchmarks.gpu.settings import pretend_hosts
from simcoll.topology.request import topology_named

Call = Callable[[torch.Tensor, torch.Tensor], object]
"""A collective of a large buffer, which holds all parts, and of a small one, which holds one."""

CALLS: dict[str, Call] = {
    "all_reduce": lambda large, small: dist.all_reduce(large),
    "broadcast": lambda large, small: dist.broadcast(large, src=0),
    "reduce": lambda large, small: dist.reduce(large, dst=0),
    "all_gather": lambda large, small: dist.all_gather_into_tensor(large, small),
    "reduce_scatter": lambda large, small: dist.reduce_scatter_tensor(small, large),
    "all_to_all": lambda large, small: dist.all_to_all_single(torch.empty_like(large), large),
}
GROUPS = (("all_reduce", 1), ("all_reduce", 4), *((name, 1) for name in list(CALLS)[1:]), ("all_gather", 4))
"""A collective and how many of it stand in one block: NCCL tells of the last one alone."""

WARM_UP = 2
TIMED = 5


def main(path: str) -> None:
    """Every call at every size."""
    job: dict[str, Any] = json.loads(Path(path).read_text())
    pretend_hosts()
    rank = int(os.environ["RANK"])
    device = torch.device(job["devices"][rank])
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", timeout=timedelta(seconds=90), device_id=device)
    dist.all_reduce(torch.ones(1, device=device))
    torch.cuda.synchronize(device)
    topology = topology_named(job["topology"])
    for size in job["sizes"]:
        large, small = buffers(size, device)
        for name, times in GROUPS:
            row = estimated(name, times, size, large, small, topology)
            if job["measured"]:
                row["measured_us"] = measured(CALLS[name], times, large, small)
            if rank == 0:
                print(json.dumps(row), flush=True)
    dist.destroy_process_group()


def buffers(size: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """``size`` bytes, and one rank's part of them; at least a float for each rank."""
    ranks = dist.get_world_size()
    part = max(1, size // 4 // ranks)
    large = torch.empty(part * ranks if ranks > 1 else max(1, size // 4), device=device)
    return large, torch.empty(part, device=device)


def estimated(
    name: str, times: int, size: int, large: torch.Tensor, small: torch.Tensor, topology: Any
) -> dict[str, Any]:
    """What both say of so many calls in one block, in microseconds; NCCL's is None where it has no figure."""
    call = CALLS[name]
    with simcoll.time_estimator(topology) as ours:
        for _ in range(times):
            call(large, small)
    row = {"op": name, "calls": times, "bytes": size, "simcoll_us": ours.estimated_time, "nccl_us": None, "why": ""}
    try:
        with dist._time_estimator() as theirs:
            for _ in range(times):
                call(large, small)
    except (RuntimeError, NotImplementedError) as error:
        return row | {"why": f"{type(error).__name__}: {str(error).splitlines()[0]:.120}"}
    # NCCL leaves its own "undefined", which is negative, where it has priced no task.
    told = theirs.estimated_time
    return row | ({"nccl_us": told} if told is not None and told >= 0 else {"why": "NCCL gives no estimate"})


def measured(call: Call, times: int, large: torch.Tensor, small: torch.Tensor) -> float:
    """Microseconds on the device between events around the calls: the median of several such blocks."""
    taken = []
    for number in range(WARM_UP + TIMED):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(times):
            call(large, small)
        end.record()
        end.synchronize()
        if number >= WARM_UP:
            taken.append(begin.elapsed_time(end) * 1e3)
    return float(statistics.median(taken))


if __name__ == "__main__":
    main(sys.argv[1])
