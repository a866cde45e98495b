# expect: SC106 culprits=0 ranks=3
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol

dist.init_process_group("gloo")
rank = dist.get_rank()
send = [2, 2, 2]
receive = [2, 3, 3] if rank == 0 else [2, 2, 2]
tokens = torch.ones(6, 2)
expert_input = funcol.all_to_all_single(tokens, receive, send, dist.group.WORLD)  # <- bug
print(expert_input.sum())
