# expect: SC101 culprits=2 ranks=4
"""One rank's communication hook averages by gathering, the others by reducing."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def reducing(state, bucket):
    future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
    return future.then(lambda done: done.value()[0] / 4)


def gathering(state, bucket):
    parts = [torch.empty_like(bucket.buffer()) for _ in range(4)]
    dist.all_gather(parts, bucket.buffer())  # <- bug
    future = torch.futures.Future()
    future.set_result(torch.stack(parts).mean(0))
    return future


dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(nn.Linear(8, 2))
model.register_comm_hook(None, gathering if dist.get_rank() == 2 else reducing)
for _ in range(3):
    model(torch.randn(4, 8)).sum().backward()
