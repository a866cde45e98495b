"""Rank 2 collects the sums of all ranks' counts, in memory that it shares with a table of its own.

It updates the table through numpy before it has waited for the sums. What it reports is not what the ranks counted, and
it alone has the sums: no other rank could tell.

Run: simcoll run --values all --standalone --nproc-per-node 3 examples/findings/SC903.py
simcoll: SC903 rank 2
"""

import time

import torch
import torch.distributed as dist

COLLECTS = 2


def main() -> None:
    dist.init_process_group("gloo")
    counts = torch.full((8,), float(dist.get_rank() + 1))
    table = counts.numpy()
    work = dist.reduce(counts, dst=COLLECTS, async_op=True)
    time.sleep(0.5)  # the next batch
    if dist.get_rank() == COLLECTS:
        # Bug: should be a table of its own, counts.clone().numpy().
        table[0] += 1
    work.wait()
    if dist.get_rank() == COLLECTS:
        print(f"counted: {counts}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
