"""A metric is averaged over the ranks while one rank still updates it, through numpy, in the memory of the tensor.

torch does not see a write through numpy, so the version of the tensor does not tell. That rank goes on with another
average than the others, and stops its training at another step.

Run: simcoll run --values all --standalone --nproc-per-node 3 examples/findings/SC902.py
simcoll: SC902 rank 1
"""

import time

import torch
import torch.distributed as dist


def main() -> None:
    dist.init_process_group("gloo")
    accuracy = torch.full((4,), 0.25 * (dist.get_rank() + 1))
    table = accuracy.numpy()
    work = dist.all_reduce(accuracy, async_op=True)
    time.sleep(0.5)  # the evaluation of the last batch
    if dist.get_rank() == 1:
        # Bug: should be a copy, accuracy.clone().numpy(), or come before the call.
        table[3] += 0.01
    work.wait()
    print(f"rank {dist.get_rank()}: {accuracy / dist.get_world_size()}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
