"""Activations are tagged with the number of their micro-batch, which one stage counts from 0 and the other from 1.

The first receive waits for a message that has another tag.

Run: simcoll run --stall 3 --standalone --nproc-per-node 2 examples/findings/SC303.py
simcoll: SC303
"""

import torch
import torch.distributed as dist

MICRO_BATCHES = 4


def main() -> None:
    dist.init_process_group("gloo")
    if dist.get_rank() == 0:
        first_stage()
    else:
        second_stage()
    dist.destroy_process_group()


def first_stage() -> None:
    for number in range(MICRO_BATCHES):
        dist.send(torch.ones(8, 16), dst=1, tag=number)


def second_stage() -> None:
    # Bug: should be range(MICRO_BATCHES).
    for number in range(1, MICRO_BATCHES + 1):
        dist.recv(torch.empty(8, 16), src=0, tag=number)


if __name__ == "__main__":
    main()
