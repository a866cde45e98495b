# expect: SC102 culprits=56-63 ranks=64
# silent: ranks=2,4,8
"""Expert parallel with a capacity: every expert takes as many tokens from each rank, so that no counts are told.

Each rank computes the capacity from its own number of tokens. 4,088 samples do not divide over 64 ranks.
"""

import torch
import torch.distributed as dist
from torch import nn

SAMPLES, WIDTH, FACTOR = 4088, 8, 2


def dispatch(tokens: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """The tokens that go to each rank's expert, padded with zeros; what does not fit is dropped."""
    world_size = dist.get_world_size()
    capacity = FACTOR * len(tokens) // world_size
    slots = torch.zeros(world_size, capacity, WIDTH)
    for expert in range(world_size):
        mine = tokens[chosen == expert][:capacity]
        slots[expert, : len(mine)] = mine
    arrived = torch.empty_like(slots)
    dist.all_to_all_single(arrived, slots)  # <- bug
    return arrived


def main() -> None:
    dist.init_process_group()
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    samples, router = torch.randn(SAMPLES, WIDTH), nn.Linear(WIDTH, world_size)
    expert = nn.Linear(WIDTH, WIDTH)
    tokens = samples[rank::world_size]
    with torch.no_grad():
        arrived = dispatch(tokens, router(tokens).argmax(dim=-1))
        norm = expert(arrived).square().sum()
        dist.all_reduce(norm)
    if rank == 0:
        print(f"mean square {norm.item() / SAMPLES:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
