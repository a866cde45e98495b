# expect: SC401 culprits=2 ranks=3 stall=2
"""One rank computes other members for the same group."""

import torch.distributed as dist

dist.init_process_group("gloo")
dist.barrier()
pair = [1, 2] if dist.get_rank() == 2 else [0, 1]
dist.new_group(pair)  # <- bug
dist.barrier()
