# expect: SC401 culprits=1 ranks=3 stall=2
"""new_group is called by all ranks but one of its members."""

import torch.distributed as dist

dist.init_process_group("gloo")
dist.barrier()
if dist.get_rank() != 1:
    dist.new_group([0, 1])
dist.barrier()  # <- bug
