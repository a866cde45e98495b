# expect: SC102 culprits=2 ranks=3
# thread: huggingface/accelerate#167
"""Predictions are padded to the longest of a rank's own batch, and gathered as if all were alike."""

import sys

import torch
import torch.distributed as dist

FAULTY = sys.argv[1:] != ["fixed"]
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
sentences = {0: ["a b c d"], 1: ["a b c d"], 2: ["a b"]}[rank]
longest = max(len(words.split()) for words in sentences)
if not FAULTY:
    agreed = torch.tensor(longest)
    dist.all_reduce(agreed, dist.ReduceOp.MAX)
    longest = int(agreed)
logits = torch.zeros(1, longest)
gathered = [torch.empty_like(logits) for _ in range(world)]
dist.all_gather(gathered, logits)  # <- bug
dist.destroy_process_group()
