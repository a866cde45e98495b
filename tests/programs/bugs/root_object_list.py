# expect: SC105 culprits=3 ranks=4
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
config = [{"lr": 0.1 * (rank + 1)}]
dist.broadcast_object_list(config, src=1 if rank == 3 else 0)  # <- bug
