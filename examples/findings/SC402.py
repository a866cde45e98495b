"""Two of four ranks hold the experts and share their load; another rank joins in, on a group that is not its own.

torch prints a warning and returns. Rank 2 then uses its own number as if it were the experts' sum.

Run: simcoll run --standalone --nproc-per-node 4 examples/findings/SC402.py
simcoll: SC402 rank 2
"""

import torch
import torch.distributed as dist


def main() -> None:
    dist.init_process_group("gloo")
    experts = dist.new_group([0, 1])
    load = torch.tensor([float(dist.get_rank())])
    balance(load, experts)
    dist.barrier()
    dist.destroy_process_group()


def balance(load: torch.Tensor, experts: dist.ProcessGroup) -> None:
    # Bug: should be < 2, the ranks of the group.
    if dist.get_rank() == 2:
        dist.all_reduce(load, group=experts)


if __name__ == "__main__":
    main()
