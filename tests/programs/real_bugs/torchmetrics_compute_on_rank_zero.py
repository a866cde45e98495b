# expect: SC202 culprits=0 ranks=3 stall=2
# thread: Lightning-AI/torchmetrics#2719
"""A metric is computed under rank_zero_only, and computing it sums its state over all ranks."""

import sys

import torch
import torch.distributed as dist

FAULTY = sys.argv[1:] != ["fixed"]


class Accuracy:
    """A metric that sums its state over the ranks when it is computed."""

    def __init__(self) -> None:
        self.state = torch.zeros(2)

    def update(self, right: int, seen: int) -> None:
        self.state += torch.tensor([float(right), float(seen)])

    def compute(self) -> float:
        dist.all_reduce(self.state)  # <- bug
        return (self.state[0] / self.state[1]).item()


dist.init_process_group("gloo")
rank, accuracy = dist.get_rank(), Accuracy()
for epoch in range(2):
    for batch in range(3):
        accuracy.update(batch + rank, 8)
    if rank == 0 or not FAULTY:
        print(f"epoch {epoch}: {accuracy.compute():.2f}")
    dist.barrier()
dist.destroy_process_group()
