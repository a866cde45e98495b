"""A collector takes the first message that comes as a greeting, and then waits for the result of rank 1.

Rank 1's result has the same tag: where it comes before rank 2's greeting, the collector takes it for the greeting and
waits for ever. In this run rank 1 was slower.

Run: simcoll run --standalone --nproc-per-node 3 examples/findings/SC305.py
simcoll: SC305, a warning
"""

import time

import torch
import torch.distributed as dist


def main() -> None:
    dist.init_process_group("gloo")
    if dist.get_rank() == 0:
        collect()
    elif dist.get_rank() == 1:
        compute()
    else:
        dist.send(torch.zeros(4), dst=0)
    dist.destroy_process_group()


def collect() -> None:
    message = torch.empty(4)
    dist.recv(message)
    # Bug: should have a tag of its own, as should the message that it waits for.
    dist.recv(message, src=1)


def compute() -> None:
    time.sleep(1)
    dist.send(torch.ones(4), dst=0)


if __name__ == "__main__":
    main()
