# expect: SC104 culprits=1 ranks=3
"""Nobody waits for the work, so that nothing raises and every rank exits with 0."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
op = dist.ReduceOp.MIN if dist.get_rank() == 1 else dist.ReduceOp.SUM
progress = torch.ones(1)
dist.all_reduce(progress, op=op, async_op=True)  # <- bug
dist.barrier()
