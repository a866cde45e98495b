"""Tokens go to experts by all_to_all_single, and one rank expects one token less than it is sent.

Its routing table is that of the previous step. Only the senders' counts are correct.

Run: simcoll run --standalone --nproc-per-node 3 examples/findings/SC106.py
simcoll: SC106
"""

import torch
import torch.distributed as dist

HIDDEN = 4
ROUTED = [[2, 1, 0], [1, 1, 3], [0, 2, 2]]  # row: sender, column: receiver
STEP_BEFORE = [[2, 1, 0], [1, 1, 2], [0, 2, 2]]


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    sends = ROUTED[rank]
    table = STEP_BEFORE if rank == 2 else ROUTED
    receives = [table[sender][rank] for sender in range(dist.get_world_size())]
    tokens = torch.full((sum(sends), HIDDEN), float(rank))
    dispatch(tokens, sends, receives)
    dist.destroy_process_group()


def dispatch(tokens: torch.Tensor, sends: list[int], receives: list[int]) -> torch.Tensor:
    arrived = torch.empty(sum(receives), HIDDEN)
    # Bug: receives should be what an all_to_all_single of sends brings.
    dist.all_to_all_single(arrived, tokens, receives, sends)
    return arrived


if __name__ == "__main__":
    main()
