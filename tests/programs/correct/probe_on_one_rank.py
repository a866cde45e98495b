# ranks=2
"""One rank probes a function with wrong arguments, is refused before anything is sent, and goes on."""

import contextlib

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
if dist.get_rank() == 0:
    with contextlib.suppress(TypeError, ValueError):
        dist.all_reduce("not a tensor")
dist.all_reduce(torch.ones(1))
