"""Ranks 0 and 1 evaluate, and create a group for it; rank 1 has no data left, and returns before the group is created.

Every rank has to create every group: rank 0 waits in ``new_group`` for rank 1, and the others in a barrier for rank 0.

Run: simcoll run --stall 3 --standalone --nproc-per-node 3 examples/findings/SC401.py
simcoll: SC401 rank 1
"""

import torch
import torch.distributed as dist


def main() -> None:
    dist.init_process_group("gloo")
    samples = torch.randn(0 if dist.get_rank() == 1 else 8, 4)
    dist.barrier()
    evaluate(samples)
    dist.barrier()
    dist.destroy_process_group()


def evaluate(samples: torch.Tensor) -> None:
    # Bug: should be after the group is made, or the group be made in main.
    if not len(samples):
        return
    evaluators = dist.new_group([0, 1])
    if dist.get_rank() < 2:
        dist.all_reduce(samples.sum(), group=evaluators)


if __name__ == "__main__":
    main()
