"""A reader sends batches to workers and ends with one message more than they receive.

It sends an empty batch as the end mark; the worker knows the number of batches and has already returned.

Run: simcoll run --standalone --nproc-per-node 2 examples/findings/SC304.py
simcoll: SC304
"""

import torch
import torch.distributed as dist

BATCHES = 3


def main() -> None:
    dist.init_process_group("gloo")
    if dist.get_rank() == 0:
        read()
    else:
        work()


def read() -> None:
    for batch in torch.randn(BATCHES, 16, 8):
        dist.send(batch, dst=1)
    # Bug: should not be sent, or the worker should take batches until the end mark.
    dist.send(torch.zeros(16, 8), dst=1)


def work() -> None:
    batch = torch.empty(16, 8)
    for _ in range(BATCHES):
        dist.recv(batch, src=0)


if __name__ == "__main__":
    main()
