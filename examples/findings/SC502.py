"""Rank 0 reads and distributes the data; it clears its gradient while the sum of gradients has not begun.

Rank 1 receives its batch first, so its gradient is added to zeros.

Run: simcoll run --standalone --nproc-per-node 2 examples/findings/SC502.py
simcoll: SC502 rank 0
"""

import torch
import torch.distributed as dist


def main() -> None:
    dist.init_process_group("gloo")
    gradient, batch = torch.ones(64), torch.empty(16, 8)
    if dist.get_rank() == 0:
        reader(gradient, batch)
    else:
        dist.recv(batch, src=0)
        dist.all_reduce(gradient)
    dist.destroy_process_group()


def reader(gradient: torch.Tensor, batch: torch.Tensor) -> None:
    work = dist.all_reduce(gradient, async_op=True)
    # Bug: should be after work.wait().
    gradient.zero_()
    dist.send(batch.normal_(), dst=1)
    assert work is not None
    work.wait()


if __name__ == "__main__":
    main()
