# expect: SC302 culprits= ranks=2
"""One pipeline stage runs in bfloat16, the other takes float16: the bytes fit, the numbers do not."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
if dist.get_rank() == 0:
    dist.send(torch.ones(8, dtype=torch.bfloat16), dst=1)
else:
    dist.recv(torch.empty(8, dtype=torch.float16), src=0)  # <- bug
dist.barrier()
