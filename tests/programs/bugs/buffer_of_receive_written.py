# expect: SC502 culprits=0 ranks=2 severity=warning
"""A buffer that takes a halo from the neighbour is cleared while the message is on its way."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
other = 1 - dist.get_rank()
interior = torch.arange(6.0)
halo = torch.empty(2)
taken = dist.irecv(halo, src=other)  # <- bug
if dist.get_rank() == 0:
    halo.zero_()
sent = dist.isend(interior[-2:].clone(), dst=other)
taken.wait()
sent.wait()
dist.destroy_process_group()
