# ranks=2
"""A monitored barrier that fails is expected, handled by all, and the job goes on."""

from datetime import timedelta

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
probe = dist.new_group(timeout=timedelta(seconds=20))
if dist.get_rank() == 0:
    said = ""
    try:
        dist.monitored_barrier(group=probe, timeout=timedelta(seconds=1))
    except RuntimeError as error:
        said = str(error)
    assert "failed to pass monitoredBarrier" in said, said
store = dist.distributed_c10d._get_default_store()
store.set(f"past{dist.get_rank()}", "1")
store.wait(["past0", "past1"])
value = torch.ones(1)
dist.all_reduce(value)
assert value.item() == 2.0
