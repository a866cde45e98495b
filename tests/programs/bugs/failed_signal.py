# expect: SC701 culprits=3 ranks=4 line=none
"""The kernel's out-of-memory killer, as a rank sees it."""

import os
import signal

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(2))
if dist.get_rank() == 3:
    os.kill(os.getpid(), signal.SIGKILL)
dist.all_reduce(torch.ones(2))
