"""Tokens go to experts by all_to_all_single, and one rank expects a token less than it is sent.

Run: simcoll run --standalone --nproc-per-node 3 examples/expert_splits.py
simcoll: SC106
"""

import torch
import torch.distributed as dist

HIDDEN = 4
ROUTED = [[2, 1, 0], [1, 1, 3], [0, 2, 2]]  # row: sender, column: receiver


def main() -> None:
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    sends = ROUTED[rank]
    receives = [ROUTED[sender][rank] for sender in range(world_size)]
    if rank == 2:
        receives[1] -= 1  # a stale routing table: rank 1 sends 3 tokens
    tokens = torch.full((sum(sends), HIDDEN), float(rank))
    arrived = torch.empty(sum(receives), HIDDEN)
    dist.all_to_all_single(arrived, tokens, receives, sends)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
