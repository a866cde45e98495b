# ranks=2
"""Everything that a Work offers, without a plain wait."""

from datetime import timedelta

import torch
import torch.distributed as dist

dist.init_process_group()
value = torch.ones(4)
work = dist.all_reduce(value, async_op=True)
while not work.is_completed():
    pass
assert work.is_success()
assert value.tolist() == [2.0] * 4
halved = dist.all_reduce(value, async_op=True).get_future().then(lambda done: done.value()[0] / 2)
assert halved.wait().tolist() == [2.0] * 4
assert dist.barrier(async_op=True).wait(timeout=timedelta(seconds=30))
with torch.inference_mode():
    parts = [torch.empty(1), torch.empty(1)]
    dist.all_gather(parts, torch.tensor([float(dist.get_rank())]), async_op=True).wait()
assert [part.item() for part in parts] == [0.0, 1.0]
