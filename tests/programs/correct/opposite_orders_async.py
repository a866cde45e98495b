# ranks=2
"""Two groups, used asynchronously in opposite orders: legal, and it must not deadlock."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
first, second = dist.new_group(), dist.new_group()
for _ in range(20):
    a, b = torch.ones(4), torch.full((4,), 2.0)
    order = [(a, first), (b, second)]
    if dist.get_rank() == 1:
        order.reverse()
    works = [dist.all_reduce(tensor, group=group, async_op=True) for tensor, group in order]
    for work in works:
        work.wait()
    assert a.tolist() == [2.0] * 4
    assert b.tolist() == [4.0] * 4
