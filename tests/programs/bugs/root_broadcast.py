# expect: SC105 culprits=1 ranks=4
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
best = max(range(4), key=lambda rank: (rank * 7) % 4)
if dist.get_rank() == 1:
    best = 0
weights = torch.randn(5, 5)
dist.broadcast(weights, best)  # <- bug
