# expect: SC502 culprits=0 ranks=2 severity=warning
"""The buffer of a message is filled again before the message was waited for."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
page = torch.zeros(1 << 16)
if dist.get_rank() == 0:
    for number in range(3):
        page.fill_(number)
        request = dist.isend(page, dst=1)  # <- bug
        page.add_(1)
        request.wait()
else:
    for _ in range(3):
        dist.recv(page, src=0)
dist.barrier()
dist.destroy_process_group()
