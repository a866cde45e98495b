# expect: SC104 culprits=2 ranks=4
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
REDUCTIONS = {"loss": dist.ReduceOp.SUM, "grad_norm": dist.ReduceOp.MAX}
if dist.get_rank() == 2:
    REDUCTIONS["loss"] = dist.ReduceOp.MAX
for operation in REDUCTIONS.values():
    value = torch.tensor(1.0)
    dist.all_reduce(value, op=operation)  # <- bug
