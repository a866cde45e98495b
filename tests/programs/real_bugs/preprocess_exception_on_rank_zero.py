# expect: SC701 culprits=0 ranks=3
# thread: bigscience-workshop/Megatron-DeepSpeed#48
"""Rank 0 opens the data alone and fails; the others wait for its word."""

import sys

import torch
import torch.distributed as dist

FAULTY = sys.argv[1:] != ["fixed"]


def load_dataset() -> list[str]:
    raise FileNotFoundError("no such data set")  # <- bug


dist.init_process_group("gloo")
ready = torch.tensor(1)
if dist.get_rank() == 0:
    try:
        load_dataset()
    except FileNotFoundError:
        if FAULTY:
            raise
        ready.zero_()
dist.all_reduce(ready, dist.ReduceOp.MIN)
dist.destroy_process_group()
