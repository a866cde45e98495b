# expect: SC102 culprits=3 ranks=4
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
histogram = torch.bincount(torch.arange(10) % 7, minlength=9 if rank == 3 else 0)
bins = [torch.zeros(7, dtype=torch.int64) for _ in range(4)] if rank == 0 else None
dist.gather(histogram, bins, dst=0)  # <- bug
