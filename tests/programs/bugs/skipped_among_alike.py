# expect: SC202 culprits=2 ranks=4
"""One rank forgets one of three averages in one step; all calls look alike, so that only the end shows it."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
loss, accuracy, norm = torch.ones(1), torch.ones(1), torch.ones(1)
for step in range(8):
    dist.all_reduce(loss)
    if dist.get_rank() != 2 or step != 3:
        dist.all_reduce(accuracy)  # <- bug
    dist.all_reduce(norm)
