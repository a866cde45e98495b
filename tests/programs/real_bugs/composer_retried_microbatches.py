# expect: SC202 culprits=2 ranks=3 stall=2 says=SC101
# thread: mosaicml/composer#1319
"""A rank that is out of memory halves its microbatches and starts the batch anew, after it has summed one."""

import sys

import torch
import torch.distributed as dist

FAULTY = sys.argv[1:] != ["fixed"]
dist.init_process_group("gloo")
rank = dist.get_rank()


def train_batch(parts: int) -> None:
    for part in range(parts):
        if rank == 2 and part == 1 and parts == 2:
            raise RuntimeError("out of memory")
        if FAULTY:
            dist.all_reduce(torch.ones(8))  # <- bug
    if not FAULTY:
        dist.all_reduce(torch.ones(8))


def agreed(fits: bool) -> bool:
    """Whether it fits on all ranks."""
    flag = torch.tensor(int(fits))
    dist.all_reduce(flag, dist.ReduceOp.MIN)
    return bool(flag)


if FAULTY:
    try:
        train_batch(2)
    except RuntimeError:
        train_batch(4)
else:
    parts = 2
    while not agreed(rank != 2 or parts > 2):
        parts *= 2
    train_batch(parts)
dist.barrier()
dist.destroy_process_group()
