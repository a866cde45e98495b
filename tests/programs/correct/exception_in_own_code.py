# ranks=2
"""Errors that have nothing to do with collectives, handled where they come up, on one rank only."""

import contextlib

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
if dist.get_rank() == 1:
    with contextlib.suppress(ZeroDivisionError):
        print(1 / 0)
    with contextlib.suppress(RuntimeError):
        torch.ones(2) @ torch.ones(3)
dist.all_reduce(torch.ones(1))
raise SystemExit(0)
