"""A rank whose loss overflows skips the step, and with it a collective that the others make.

The calls look alike, so each later call meets the wrong call of that rank; the last call is left over, and hangs.

Run: simcoll run --standalone --nproc-per-node 4 examples/findings/SC202.py
simcoll: SC202 rank 2
"""

import torch
import torch.distributed as dist


def main() -> None:
    dist.init_process_group("gloo")
    losses = torch.full((6,), 0.5)
    if dist.get_rank() == 2:
        losses[3] = torch.inf
    scale = torch.ones(())
    for loss in losses:
        norm = torch.ones(())
        dist.all_reduce(norm)
        step(loss / norm)
        dist.all_reduce(scale, op=dist.ReduceOp.SUM)
        scale /= dist.get_world_size()
    dist.destroy_process_group()


def step(loss: torch.Tensor) -> None:
    # Bug: should ask for a sum over all ranks, so that all of them skip the step or none.
    if loss.isfinite():
        dist.all_reduce(loss)


if __name__ == "__main__":
    main()
