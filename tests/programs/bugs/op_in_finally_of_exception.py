# expect: SC101 culprits=1 ranks=3
"""One rank fails in its own data, and comes to the barrier of the clean-up while the others sum."""

import torch
import torch.distributed as dist


def epoch(values):
    for step in range(2):
        loss = torch.tensor([values[step]])
        dist.all_reduce(loss)


dist.init_process_group("gloo")
try:
    epoch([1.0, 2.0] if dist.get_rank() != 1 else [1.0])
finally:
    dist.barrier()  # <- bug
