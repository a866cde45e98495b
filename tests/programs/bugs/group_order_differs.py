# expect: SC401 culprits=0 ranks=3 stall=2
"""The ranks make the same two groups in another order."""

import torch.distributed as dist

dist.init_process_group("gloo")
dist.barrier()
if dist.get_rank() == 0:
    second = dist.new_group([0, 2])  # <- bug
    first = dist.new_group([0, 1])
else:
    first = dist.new_group([0, 1])
    second = dist.new_group([0, 2])
dist.barrier()
