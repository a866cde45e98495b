# ranks=4
"""Rank 0 takes results in the order in which they come."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
if rank == 0:
    senders = []
    for _ in range(3):
        result = torch.empty(2)
        sender = dist.recv(result, tag=5)
        assert result.tolist() == [sender, sender * 2]
        senders.append(sender)
    assert sorted(senders) == [1, 2, 3]
else:
    dist.send(torch.tensor([float(rank), rank * 2.0]), dst=0, tag=5)
dist.barrier()
