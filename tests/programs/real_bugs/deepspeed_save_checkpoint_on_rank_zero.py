# expect: SC202 culprits=0 ranks=3 stall=2
# thread: deepspeedai/DeepSpeed#2993
"""save_checkpoint has barriers of its own, and the training script calls it under is_main_process."""

import sys

import torch
import torch.distributed as dist

FAULTY = sys.argv[1:] != ["fixed"]


class Engine:
    """An engine whose checkpoints are written by all ranks."""

    def save_checkpoint(self) -> None:
        dist.barrier()  # <- bug
        shard = {"rank": dist.get_rank()}
        dist.barrier()
        assert shard

    def step(self) -> None:
        dist.all_reduce(torch.ones(6))


dist.init_process_group("gloo")
engine, is_main_process = Engine(), dist.get_rank() == 0
for number in range(4):
    engine.step()
    if number == 1 and (is_main_process or not FAULTY):
        engine.save_checkpoint()
dist.destroy_process_group()
