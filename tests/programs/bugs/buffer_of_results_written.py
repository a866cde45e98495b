# expect: SC502 culprits=1,2 ranks=3 severity=warning
"""Rows that did not arrive are marked after the collectives were started, on all ranks but the first."""

import torch
import torch.distributed as dist


def start(rows: torch.Tensor, mine: torch.Tensor) -> dist.Work:
    return dist.all_gather_into_tensor(rows, mine, async_op=True)  # <- bug


dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
rows = torch.empty(size, 4)
gathered = start(rows.view(-1), torch.full((4,), float(rank)))
if rank > 0:
    rows.fill_(-1)
gathered.wait()
dist.barrier()
dist.destroy_process_group()
