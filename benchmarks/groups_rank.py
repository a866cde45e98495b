"""One rank of the benchmark of groups, started by ``groups.py``: makes groups, and calls all_reduce twice in each."""

from __future__ import annotations

import json
import os
import sys
import time
from collections import defaultdict

import torch
import torch.distributed as dist

PARTS = ("made", "first call", "second call")


def main(groups: int) -> None:
    """One rank: prints the seconds of each part as JSON on rank 0."""
    dist.init_process_group("gloo")
    tensor = torch.zeros(1)
    dist.all_reduce(tensor)
    seconds: dict[str, float] = defaultdict(float)
    for _ in range(groups):
        began = time.perf_counter()
        group = dist.new_group()
        made = time.perf_counter()
        dist.all_reduce(tensor, group=group)
        called = time.perf_counter()
        dist.all_reduce(tensor, group=group)
        for part, spent in zip(PARTS, (made - began, called - made, time.perf_counter() - called), strict=True):
            seconds[part] += spent / groups
    if dist.get_rank() == 0:
        print(json.dumps([{"part": part, "seconds": spent} for part, spent in seconds.items()]), flush=True)
    dist.barrier()
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]))
