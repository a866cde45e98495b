# expect: SC103 culprits= ranks=2
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
mine = torch.arange(4, dtype=torch.int64 if dist.get_rank() else torch.int32)
parts = [torch.empty_like(mine) for _ in range(2)]
dist.all_gather(parts, mine)  # <- bug
