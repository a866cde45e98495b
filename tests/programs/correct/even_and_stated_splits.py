# ranks=3
"""No splits on one rank, equal splits stated on the others: the same thing."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
tokens = torch.arange(6.0) + 10 * rank
routed = torch.empty(6)
if rank == 0:
    dist.all_to_all_single(routed, tokens)
else:
    dist.all_to_all_single(routed, tokens, [2, 2, 2], [2, 2, 2])
assert routed.reshape(3, 2)[:, 0].tolist() == [2.0 * rank, 10 + 2.0 * rank, 20 + 2.0 * rank]
