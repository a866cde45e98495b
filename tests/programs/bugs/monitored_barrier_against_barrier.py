# expect: SC101 culprits=3 ranks=4
import torch.distributed as dist

dist.init_process_group("gloo")
dist.barrier()
if dist.get_rank() == 3:
    dist.monitored_barrier()  # <- bug
else:
    dist.barrier()
