"""Two of three ranks evaluate, and make a group for it; the third goes on training.

Every rank has to make every group, members or not: the other two wait in ``new_group`` until it comes.

Run: simcoll run --stall 3 --standalone --nproc-per-node 3 examples/findings/SC401.py
simcoll: SC401 rank 2
"""

import torch
import torch.distributed as dist

EVALUATE = (0, 1)


def main() -> None:
    dist.init_process_group("gloo")
    score = torch.tensor(float(dist.get_rank()))
    if dist.get_rank() in EVALUATE:
        evaluate(score)
    dist.barrier()
    dist.destroy_process_group()


def evaluate(score: torch.Tensor) -> None:
    # Bug: should be made in main, by every rank.
    group = dist.new_group(EVALUATE)
    dist.all_reduce(score, group=group)


if __name__ == "__main__":
    main()
