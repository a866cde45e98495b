# ranks=2
"""Each rank posts its receive, sends synchronously, and only then waits; then a store decides who goes on."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
store = dist.distributed_c10d._get_default_store()
for size in (1, 1000, 200_000):
    incoming = torch.empty(size)
    work = dist.irecv(incoming, src=1 - rank)
    dist.send(torch.full((size,), float(rank)), dst=1 - rank)
    work.wait()
    assert incoming[-1].item() == 1.0 - rank

if rank == 0:
    late = torch.empty(4)
    work = dist.irecv(late, src=1, tag=3)
    # The sender cannot end before the receive is there, and this rank waits for the sender outside the group.
    store.wait(["sent"])
    work.wait()
    assert late.tolist() == [7.0] * 4
else:
    dist.send(torch.full((4,), 7.0), dst=0, tag=3)
    store.set("sent", "yes")
dist.barrier()
