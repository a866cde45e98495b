# ranks=2
"""A timer's signal interrupts the rank in the middle of its collectives."""

import signal

import torch
import torch.distributed as dist

ticks = []
signal.signal(signal.SIGALRM, lambda *_: ticks.append(1))
dist.init_process_group("gloo")
signal.setitimer(signal.ITIMER_REAL, 0.005, 0.005)
for _ in range(100):
    dist.all_reduce(torch.ones(64))
signal.setitimer(signal.ITIMER_REAL, 0)
assert ticks
