# expect: SC601 culprits=2 ranks=3
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
table = torch.arange(9.0).reshape(3, 3)
if dist.get_rank() == 2:
    table = table.t()
exchanged = torch.empty(3, 3)
dist.all_to_all_single(exchanged, table)  # <- bug
