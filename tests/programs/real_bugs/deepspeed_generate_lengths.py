# expect: SC202 culprits=1 ranks=3 stall=2
# thread: deepspeedai/DeepSpeed#8262
"""With ZeRO-3 each decoding step gathers parameters; a rank that meets its end of sequence goes on to the teacher."""

import sys

import torch
import torch.distributed as dist

FAULTY = sys.argv[1:] != ["fixed"]
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
shard, whole = torch.ones(4), torch.empty(4 * world)
length = 3 if FAULTY and rank == 1 else 5
for _token in range(length):
    dist.all_gather_into_tensor(whole, shard)
score = torch.tensor([float(length)])
dist.all_reduce(score)  # <- bug
dist.destroy_process_group()
