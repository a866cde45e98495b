# expect: SC202 culprits=0 ranks=3 stall=2
# thread: huggingface/transformers-bloom-inference#40
"""Rank 0 alone calls a barrier after the download."""

import sys

import torch
import torch.distributed as dist

FAULTY = sys.argv[1:] != ["fixed"]
dist.init_process_group("gloo")
if dist.get_rank() == 0:
    print("downloading")
    if FAULTY:
        dist.barrier()  # <- bug
if not FAULTY:
    dist.barrier()
weights = torch.zeros(4)
dist.broadcast(weights, src=0)
dist.destroy_process_group()
