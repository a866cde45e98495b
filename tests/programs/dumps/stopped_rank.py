# expect: SC201 culprits=1
"""The process of one rank is stopped: it leaves no dump, and all others wait in a call that only it can hold up."""

import os
import signal
import subprocess

import torch
import torch.distributed as dist
from leaving import job


def main(rank: int) -> None:
    dist.all_reduce(torch.ones(4))
    if rank == 1:
        subprocess.Popen(["sh", "-c", f"sleep 12; kill -9 {os.getpid()}"])
        os.kill(os.getpid(), signal.SIGSTOP)
    dist.all_reduce(torch.ones(4))  # <- bug


job(main, seconds=11)
