# expect: SC204 culprits=1
"""One member of a group leaves out a call there, and waits for the others in their next one."""

import torch
import torch.distributed as dist
from leaving import job


def main(rank: int) -> None:
    group = dist.new_group([0, 1, 2])
    dist.all_reduce(torch.ones(4))
    if rank < 3:
        dist.all_reduce(torch.ones(4), group=group)
    if rank in (0, 2):
        dist.all_reduce(torch.ones(4), group=group)  # <- bug
    dist.all_reduce(torch.ones(4))


job(main, seconds=7)
