# expect: nothing
"""Everything that Gloo can do, right."""

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from leaving import job


def main(rank: int) -> None:
    size, x = 4, torch.ones(4, 5)
    dist.all_reduce(x, op=dist.ReduceOp.MAX)
    for root in range(size):
        dist.broadcast(torch.ones(3, dtype=torch.bfloat16), src=root)
        dist.reduce(torch.ones(3, dtype=torch.complex64), dst=root)
        dist.gather(torch.ones(2), [torch.empty(2) for _ in range(size)] if rank == root else None, dst=root)
        dist.scatter(torch.empty(2), [torch.ones(2) for _ in range(size)] if rank == root else None, src=root)
    dist.gather(torch.ones(0), [torch.empty(0) for _ in range(size)] if rank == 1 else None, dst=1)
    dist.reduce_scatter_tensor(torch.empty(2), torch.ones(2 * size))
    dist.all_gather_into_tensor(torch.empty(2 * size), torch.ones(2))
    dist.all_gather([torch.empty(2) for _ in range(size)], torch.ones(2))
    splits = [[(sender + receiver) % 3 for receiver in range(size)] for sender in range(size)]
    mine, theirs = splits[rank], [splits[sender][rank] for sender in range(size)]
    dist.all_to_all_single(torch.empty(sum(theirs), 2), torch.ones(sum(mine), 2), theirs, mine)
    dist.all_to_all_single(torch.empty(size), torch.ones(size))
    dist.all_reduce(torch.ones(0))
    pair = dist.new_group([0, 1])
    sub, _ = dist.new_subgroups(2)
    if rank < 2:
        dist.all_reduce(torch.ones(3), group=pair)
        dist.broadcast(torch.ones(2), src=1, group=pair)
    dist.all_reduce(torch.ones(rank // 2 + 1), group=sub)
    if rank == 0:
        dist.send(torch.ones(3), 1)
    if rank == 1:
        dist.recv(torch.ones(3), 0)
    dist.monitored_barrier()
    dist.all_gather_object([None] * size, {"rank": "r" * rank})
    dist.broadcast_object_list([{"a": 1}], src=2)
    dist.scatter_object_list([None], list(range(size)) if rank == 3 else None, src=3)
    with dist._coalescing_manager():
        dist.all_reduce(torch.ones(2))
        dist.all_reduce(torch.ones(3))
    functional.all_reduce(torch.ones(2), "sum", dist.group.WORLD).sum()
    work = dist.all_reduce(torch.ones(4), async_op=True)
    dist.barrier()
    work.wait()


job(main)
