# expect: SC101 culprits=2 ranks=3
import contextlib

import torch
import torch.distributed as dist


@contextlib.contextmanager
def phase(tensor):
    yield tensor
    if dist.get_rank() == 2:
        dist.broadcast(tensor, 0)  # <- bug
    else:
        dist.all_reduce(tensor)


def batches():
    for index in range(3):
        with phase(torch.full((4,), float(index))) as batch:
            yield batch


dist.init_process_group("gloo")
print(sum(batch.sum().item() for batch in batches()))
