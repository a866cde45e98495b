# expect: SC101 culprits=1 ranks=4
"""The clean-up of one rank says goodbye with a collective of its own."""

import torch
import torch.distributed as dist


def train():
    for _ in range(4):
        dist.all_reduce(torch.ones(3, 5))


dist.init_process_group("gloo")
try:
    train()
finally:
    done = torch.ones(1, dtype=torch.int64)
    if dist.get_rank() == 1:
        flags = [torch.zeros_like(done) for _ in range(4)]
        dist.all_gather(flags, done)  # <- bug
    else:
        dist.all_reduce(done)
