# ranks=4
"""SyncBatchNorm by hand: autograd's own collectives, in forward and in backward."""

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as dnn

dist.init_process_group("gloo")
x = torch.full((3,), float(dist.get_rank()), requires_grad=True)
total = dnn.all_reduce(x * 2)
gathered = torch.cat(dnn.all_gather(x))
loss = total.sum() + gathered.sum()
loss.backward()
assert x.grad is not None
assert total.tolist() == [12.0] * 3
