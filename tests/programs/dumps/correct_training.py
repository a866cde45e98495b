# expect: nothing
"""DDP and FSDP, and the default group destroyed and made again."""

import torch
import torch.distributed as dist
from leaving import job
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel


def main(rank: int) -> None:
    model = DistributedDataParallel(torch.nn.Linear(8, 8))
    for _ in range(3):
        model(torch.ones(2, 8)).sum().backward()
    sharded = fully_shard(torch.nn.Linear(8, 8, bias=False))
    sharded(torch.ones(2, 8)).sum().backward()
    dist.barrier()
    dist.destroy_process_group()
    store, rank, size = next(dist.rendezvous("env://"))
    dist.init_process_group("gloo", store=dist.PrefixStore("again", store), rank=rank, world_size=size)
    dist.all_reduce(torch.ones(3))


job(main, seconds=6)
