# expect: SC201 culprits=none unknown=root
"""One rank broadcasts from another root: some wait for it, others have gone on, and no dump says why."""

import torch
import torch.distributed as dist
from leaving import job


def main(rank: int) -> None:
    dist.all_reduce(torch.ones(4))
    dist.broadcast(torch.ones(8), src=1 if rank == 2 else 0)  # <- bug
    dist.barrier()


job(main, seconds=7)
