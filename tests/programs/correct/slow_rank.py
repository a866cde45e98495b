# ranks=3
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
for step in range(4):
    if dist.get_rank() == 1 and step == 2:
        time.sleep(2)
    value = torch.ones(2)
    work = dist.all_reduce(value, async_op=True)
    work.wait()
    assert value.tolist() == [3.0, 3.0]
