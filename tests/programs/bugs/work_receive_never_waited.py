# expect: SC501 culprits=1 ranks=2 severity=warning
"""The receiver reads its buffer without waiting for the message."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
batch = torch.zeros(16)
if dist.get_rank() == 0:
    dist.send(batch + 1, dst=1)
else:
    request = dist.irecv(batch, src=0)  # <- bug
    print(batch.sum())
dist.barrier()
dist.destroy_process_group()
