# expect: SC202 culprits=0 ranks=3 stall=2
# thread: speechbrain/speechbrain#2051
"""The counter of epochs hears of the metric on the main process alone, and stops there alone."""

import sys

import torch
import torch.distributed as dist

FAULTY = sys.argv[1:] != ["fixed"]


class EpochCounter:
    """Stops when a metric no longer falls."""

    def __init__(self) -> None:
        self.best, self.stopped = 9.0, False

    def update_metric(self, metric: float) -> None:
        self.stopped = metric >= self.best
        self.best = min(self.best, metric)


dist.init_process_group("gloo")
counter = EpochCounter()
for metric in (3.0, 2.0, 2.5, 2.4):
    if counter.stopped:
        break
    dist.all_reduce(torch.ones(4))  # <- bug
    if dist.get_rank() == 0 or not FAULTY:
        counter.update_metric(metric)
dist.barrier()
dist.destroy_process_group()
