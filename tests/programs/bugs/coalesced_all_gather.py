# expect: SC110 culprits=1 ranks=3
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol

dist.init_process_group("gloo")
parts = [torch.ones(4), torch.ones(6, dtype=torch.float64)]
if dist.get_rank() == 1:
    parts[1] = parts[1].float()
outputs = funcol.all_gather_into_tensor_coalesced(parts, dist.group.WORLD)  # <- bug
print([output.sum() for output in outputs])
