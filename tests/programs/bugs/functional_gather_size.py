# expect: SC102 culprits=1 ranks=3
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol

dist.init_process_group("gloo")
hidden = torch.ones(7 if dist.get_rank() == 1 else 8, 2)
gathered = funcol.all_gather_tensor(hidden, 0, dist.group.WORLD)  # <- bug
print(gathered.sum())
