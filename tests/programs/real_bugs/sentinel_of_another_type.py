# expect: SC103 culprits=1 ranks=3
# thread: NVIDIA/TensorRT-LLM#7507
"""A rank that cannot serialise its object gathers a flag, where the others gather a length."""

import pickle
import sys

import torch
import torch.distributed as dist

FAULTY = sys.argv[1:] != ["fixed"]
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
try:
    length = torch.tensor([len(pickle.dumps((lambda: None) if rank == 1 else "text"))])
except (AttributeError, pickle.PicklingError):
    length = torch.tensor([False]) if FAULTY else torch.tensor([-1])
lengths = torch.empty(world, dtype=length.dtype)
dist.all_gather_into_tensor(lengths, length)  # <- bug
dist.destroy_process_group()
