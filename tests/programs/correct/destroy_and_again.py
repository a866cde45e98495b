# ranks=3
"""Three lives of the default group, each under a prefix of its own in one store."""

import torch
import torch.distributed as dist

store, rank, world = next(dist.rendezvous("env://"))
for life in range(3):
    dist.init_process_group("gloo", store=dist.PrefixStore(str(life), store), rank=rank, world_size=world)
    pair = dist.new_group([0, 1])
    if rank < 2:
        dist.all_reduce(torch.ones(1), group=pair)
    total = torch.tensor(life)
    dist.all_reduce(total)
    assert total.item() == 3 * life
    dist.barrier()
    dist.destroy_process_group()
