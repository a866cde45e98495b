# expect: SC701 culprits=1 ranks=2
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = DistributedDataParallel(nn.Linear(4, 4))
for step in range(4):
    loss = model(torch.ones(2, 4)).sum()
    if step == 2 and dist.get_rank() == 1:
        raise FloatingPointError("loss is not finite")  # <- bug
    loss.backward()
