"""Uneven and empty splits that are right: what each rank sends is what the others expect, and simcoll is silent.

Run: simcoll run --standalone --nproc-per-node 3 examples/uneven_all_to_all.py
simcoll: clean
"""

import torch
import torch.distributed as dist

HIDDEN = 4
ROUTED = [[2, 1, 0], [1, 0, 3], [0, 2, 2]]  # row: sender, column: receiver


def main() -> None:
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    sends = ROUTED[rank]
    receives = [ROUTED[sender][rank] for sender in range(world_size)]
    tokens = torch.full((sum(sends), HIDDEN), float(rank))
    arrived = torch.empty(sum(receives), HIDDEN)
    dist.all_to_all_single(arrived, tokens, receives, sends)
    senders = torch.repeat_interleave(torch.arange(world_size), torch.tensor(receives))
    assert torch.equal(arrived[:, 0], senders.float())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
