# expect: SC601 culprits=2-3 ranks=4
# thread: flashinfer-ai/flashinfer#3418
"""The root of a tensor-parallel group is given as a rank of the group, where a global rank is meant."""

import sys

import torch.distributed as dist

FAULTY = sys.argv[1:] != ["fixed"]
dist.init_process_group("gloo")
groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
group = groups[dist.get_rank() // 2]
handles = [f"handle of {dist.get_rank()}"]
if FAULTY:
    dist.broadcast_object_list(handles, src=0, group=group)  # <- bug
else:
    dist.broadcast_object_list(handles, group_src=0, group=group)
dist.barrier()
dist.destroy_process_group()
