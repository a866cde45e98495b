# expect: SC106 culprits= ranks=2
# thread: pytorch/pytorch#117486
"""What a rank expects of the other is not what the other sends."""

import sys

import torch
import torch.distributed as dist

FAULTY = sys.argv[1:] != ["fixed"]
dist.init_process_group("gloo")
rank = dist.get_rank()
sent = [[2, 1], [3, 2]]
expected = [[2, 3], [2 if FAULTY else 1, 2]]
tokens = torch.ones(sum(sent[rank]))
received = torch.empty(sum(expected[rank]))
dist.all_to_all_single(received, tokens, expected[rank], sent[rank])  # <- bug
dist.destroy_process_group()
