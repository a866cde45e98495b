# expect: SC501 culprits= ranks=2 severity=warning
"""Only the last work of a loop is waited for."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
layers = [torch.full((8,), float(layer)) for layer in range(4)]
for layer in layers:
    work = dist.all_reduce(layer, async_op=True)  # <- bug
work.wait()
dist.barrier()
print(sum(layer.sum() for layer in layers))
dist.destroy_process_group()
