# expect: SC103 culprits=0 ranks=3
# thread: modelscope/ms-swift#5809
"""Autocast has one rank gather a bfloat16 where the others gather a float32."""

import sys

import torch
import torch.distributed as dist

FAULTY = sys.argv[1:] != ["fixed"]
dist.init_process_group("gloo")
with torch.autocast("cpu", dtype=torch.bfloat16, enabled=FAULTY and dist.get_rank() == 0):
    divergence = torch.ones(1, 4) @ torch.ones(4, 1)
gathered = torch.empty(dist.get_world_size(), dtype=divergence.dtype)
dist.all_gather_into_tensor(gathered, divergence.flatten())  # <- bug
dist.destroy_process_group()
