# expect: SC601 culprits=1 ranks=3
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
mine = torch.ones(2)
kind = torch.float64 if dist.get_rank() == 1 else torch.float32
parts = [torch.empty(2, dtype=kind) for _ in range(3)]
dist.all_gather(parts, mine)  # <- bug
