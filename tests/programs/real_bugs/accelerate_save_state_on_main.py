# expect: SC202 culprits= ranks=2 stall=2
# thread: huggingface/accelerate#2000
"""With FSDP the full state is gathered from all ranks, but save_state is called on the main process alone."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

FAULTY = sys.argv[1:] != ["fixed"]
dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
fully_shard(model)
model(torch.ones(2, 4)).sum().backward()
dist.barrier()
if dist.get_rank() == 0 or not FAULTY:
    state = {name: value.full_tensor() for name, value in model.state_dict().items()}  # <- bug
dist.barrier()
dist.destroy_process_group()
