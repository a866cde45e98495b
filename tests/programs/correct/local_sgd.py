# ranks=4
"""Each rank trains on its own for a number of steps of its own; weights are averaged in between."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
model = torch.nn.Linear(4, 1)
for parameter in model.parameters():
    dist.broadcast(parameter.data, 0)
for _ in range(3):
    for _ in range(rank + 1):
        model.zero_grad()
        model(torch.randn(2, 4)).sum().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.01 * parameter.grad
    with torch.no_grad():
        for parameter in model.parameters():
            dist.all_reduce(parameter.data, op=dist.ReduceOp.AVG)
