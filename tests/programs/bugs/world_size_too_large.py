# expect: SC401 culprits= ranks=2 stall=2
"""The world size still counts the evaluation rank that is no longer started."""

import os

import torch.distributed as dist

TRAINERS = int(os.environ["WORLD_SIZE"])
EVALUATORS = 1

dist.init_process_group("gloo", rank=int(os.environ["RANK"]), world_size=TRAINERS + EVALUATORS)  # <- bug
dist.barrier()
