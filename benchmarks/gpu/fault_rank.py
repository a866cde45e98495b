"""A training script with one fault, as a user would start it with ``simcoll run``: see `benchmarks.gpu.faults`.

    fault_rank.py FAULT BACKEND GPUS

The last rank has the fault, all others are right. GPUS is how many the ranks have between them, 0 for CPU tensors.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

BAD_POINTER = "template <typename T> T bad(T x) { return *reinterpret_cast<T*>(16); }"


def late(tensor: torch.Tensor) -> None:
    """Never come to the next collective."""
    time.sleep(600)


def killed(tensor: torch.Tensor) -> None:
    """Be killed while the device is busy with a collective."""
    if tensor.is_cuda:
        torch.cuda._sleep(2_000_000_000)
    dist.all_reduce(tensor, async_op=True)
    os.kill(os.getpid(), signal.SIGKILL)


def illegal(tensor: torch.Tensor) -> None:
    """Read memory that is not there, in a kernel."""
    torch.cuda.jiterator._create_jit_fn(BAD_POINTER)(tensor)
    torch.cuda.synchronize()


def out_of_range(tensor: torch.Tensor) -> None:
    """Take an element beyond the end: torch's kernels assert on the device."""
    tensor[torch.full((4,), 1 << 30, device=tensor.device)].sum()
    torch.cuda.synchronize()


FAULTS = {"late": late, "killed": killed, "illegal": illegal, "out_of_range": out_of_range}


def main(fault: str, backend: str, gpus: int) -> None:
    """Three right steps, then the fault on the last rank."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device(f"cuda:{rank % gpus}" if gpus else "cpu")
    if os.environ.get("SIMCOLL_CHECK_HOSTS"):
        os.environ["NCCL_HOSTID"] = f"simcoll-{rank}"
    if gpus:
        torch.cuda.set_device(device)
    # By itself torch takes the GPU that the local rank names, of which there may be fewer.
    bound = device if backend == "nccl" else None
    dist.init_process_group(backend, timeout=timedelta(seconds=120), device_id=bound)
    tensor = torch.ones(1024).to(device)
    for _ in range(3):
        dist.all_reduce(tensor)
    if gpus:
        torch.cuda.synchronize()
    if rank == size - 1:
        FAULTS[fault](tensor)
    dist.all_reduce(tensor)
    if gpus:
        torch.cuda.synchronize()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
