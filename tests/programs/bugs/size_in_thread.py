# expect: SC102 culprits=2 ranks=3
"""Metrics are reduced by a thread on a group of their own while the main thread trains."""

import threading

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
metrics_group = dist.new_group()
rank = dist.get_rank()


def publish():
    for step in range(8):
        values = torch.ones(4 if rank == 2 and step == 5 else 3)
        dist.all_reduce(values, group=metrics_group)  # <- bug


thread = threading.Thread(target=publish)
thread.start()
for _ in range(8):
    dist.all_reduce(torch.ones(16))
thread.join()
raise SystemExit(1)
