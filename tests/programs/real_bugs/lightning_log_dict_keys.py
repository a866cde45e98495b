# expect: SC202 culprits=2 ranks=3 stall=2 says=SC102
# thread: Lightning-AI/pytorch-lightning#19106
"""Each logged key is averaged by a collective; a rank that met no positive sample has one key less."""

import sys

import torch
import torch.distributed as dist

FAULTY = sys.argv[1:] != ["fixed"]
dist.init_process_group("gloo")
rank = dist.get_rank()
samples = {0: [1, 0, 1], 1: [0, 1, 1], 2: [0, 0, 0]}[rank]
for _step in range(2):
    logged = {"loss": torch.tensor(0.5), "recall": torch.tensor(0.1), "spread": torch.ones(2)}
    if FAULTY and not any(samples):
        del logged["recall"]
    for name in sorted(logged):
        dist.all_reduce(logged[name])  # <- bug
dist.destroy_process_group()
