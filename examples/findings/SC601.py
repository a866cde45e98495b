"""Rank 0 gathers the scores of all ranks, and every rank passes a list for them.

Only the destination may pass a list. torch refuses the call on the others, which fail; rank 0 would wait for them.

Run: simcoll run --standalone --nproc-per-node 3 examples/findings/SC601.py
simcoll: SC601 rank 1 rank 2
"""

import torch
import torch.distributed as dist


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    scores = torch.rand(6)
    dist.barrier()
    everyone = gathered(scores)
    if dist.get_rank() == 0:
        print(f"best score {torch.cat(everyone).max():.3f}")
    dist.destroy_process_group()


def gathered(scores: torch.Tensor) -> list[torch.Tensor]:
    everyone = [torch.empty_like(scores) for _ in range(dist.get_world_size())]
    # Bug: should be None instead of everyone, on every rank but 0.
    dist.gather(scores, everyone, dst=0)
    return everyone


if __name__ == "__main__":
    main()
