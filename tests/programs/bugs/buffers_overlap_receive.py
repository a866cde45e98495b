# expect: SC503 culprits=1 ranks=2 severity=warning
"""A message is received into a buffer that is still being sent."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
token = torch.full((4,), float(dist.get_rank()))
if dist.get_rank() == 1:
    sent = dist.isend(token, dst=0)
    received = dist.irecv(token, src=0)  # <- bug
    sent.wait()
    received.wait()
else:
    dist.recv(torch.empty(4), src=1)
    dist.send(token, dst=1)
dist.barrier()
dist.destroy_process_group()
