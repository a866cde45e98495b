"""Under any launcher, switch simcoll on and off in the program itself; every group made before or after is covered.

Run: torchrun --standalone --nproc-per-node 2 examples/switch_on_in_code.py
simcoll: handled
"""

import torch
import torch.distributed as dist

import simcoll


def main() -> None:
    dist.init_process_group("gloo")
    simcoll.enable(mode="detail")
    operator = dist.ReduceOp.SUM if dist.get_rank() == 0 else dist.ReduceOp.MAX
    try:
        dist.all_reduce(torch.ones(2), op=operator)
    except simcoll.CollectiveMismatchError as mismatch:
        print(f"rank {dist.get_rank()}: {str(mismatch).splitlines()[0]}")
    else:
        raise SystemExit("the operators differ, and nothing was raised")
    simcoll.disable()
    dist.all_reduce(torch.ones(2))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
