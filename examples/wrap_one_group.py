"""Under any launcher, prove the calls of one group only: wrap it explicitly, and catch what it raises.

After a mismatch the group works on: the calls that match run as ever.

Run: torchrun --standalone --nproc-per-node 2 examples/wrap_one_group.py
simcoll: handled
"""

from datetime import timedelta

import torch
import torch.distributed as dist

import simcoll


def main() -> None:
    store, rank, world_size = next(dist.rendezvous("env://"))
    store = dist.PrefixStore("careful", store)
    inner = dist.ProcessGroupGloo(store, rank, world_size, timedelta(seconds=30))
    group = simcoll.wrap_process_group(inner, store=store, timeout=timedelta(seconds=30), mode="detail")
    try:
        group.allreduce([torch.ones(2 + rank)])
    except simcoll.CollectiveMismatchError as mismatch:
        print(f"rank {rank}: {str(mismatch).splitlines()[0]}")
    else:
        raise SystemExit("the sizes differ, and nothing was raised")
    ones = torch.ones(3)
    group.allreduce([ones]).wait()
    assert torch.equal(ones, torch.full((3,), float(world_size)))
    group.shutdown()


if __name__ == "__main__":
    main()
