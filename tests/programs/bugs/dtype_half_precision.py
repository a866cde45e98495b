# expect: SC103 culprits=3 ranks=4
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
model = nn.Linear(6, 6)
if dist.get_rank() == 3:
    model = model.half()
for tensor in model.state_dict().values():
    dist.broadcast(tensor, src=0)  # <- bug
