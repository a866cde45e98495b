# ranks=3
import time
from datetime import timedelta

import torch.distributed as dist

dist.init_process_group("gloo")
pair = dist.new_group([1, 2])
for turn in range(3):
    if dist.get_rank() == turn:
        time.sleep(0.2)
    dist.monitored_barrier(timeout=timedelta(seconds=20))
if dist.get_rank() > 0:
    dist.monitored_barrier(group=pair, timeout=timedelta(seconds=20), wait_all_ranks=True)
dist.barrier()
