# expect: SC202 culprits=0 ranks=3 stall=2
# thread: huggingface/transformers#29980
"""Saving on rank 0 runs a forward pass, which gathers parameters under ZeRO-3."""

import sys

import torch
import torch.distributed as dist

FAULTY = sys.argv[1:] != ["fixed"]
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()


def prompt_encoder() -> torch.Tensor:
    whole = torch.empty(2 * world)
    dist.all_gather_into_tensor(whole, torch.ones(2))  # <- bug
    return whole


def save_pretrained() -> None:
    embeddings = prompt_encoder()
    print(embeddings.shape)


prompt_encoder()
if rank == 0 or not FAULTY:
    save_pretrained()
dist.all_reduce(torch.ones(3))
dist.barrier()
dist.destroy_process_group()
