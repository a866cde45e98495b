"""A halo exchange in a ring: every rank sends its last row to the next one before it receives.

A send ends when it is received, so all of them wait in their sends for ever.

Run: simcoll run --stall 3 --standalone --nproc-per-node 3 examples/findings/SC204.py
simcoll: SC204
"""

import torch
import torch.distributed as dist


def main() -> None:
    dist.init_process_group("gloo")
    field = torch.full((4, 8), float(dist.get_rank()))
    for _ in range(3):
        halo = exchange(field)
        field[0] = (halo + field[1]) / 2
    dist.destroy_process_group()


def exchange(field: torch.Tensor) -> torch.Tensor:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    halo = torch.empty(8)
    # Bug: should be isend, waited for after the recv.
    dist.send(field[-1], dst=(rank + 1) % world_size)
    dist.recv(halo, src=(rank - 1) % world_size)
    return halo


if __name__ == "__main__":
    main()
