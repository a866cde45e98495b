# expect: SC502 culprits=0 ranks=3 severity=warning
"""One buffer is filled again for the next worker while its message to the first is on its way."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
task = torch.zeros(1000)
if rank == 0:
    sends = []
    for worker in range(1, size):
        task.fill_(worker)
        sends.append(dist.isend(task, dst=worker))  # <- bug
    for send in sends:
        send.wait()
else:
    dist.recv(task, src=0)
dist.destroy_process_group()
