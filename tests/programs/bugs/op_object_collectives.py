# expect: SC101 culprits=2 ranks=4
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
report = {"rank": rank, "accuracy": 0.5 + rank / 10}
if rank == 2:
    box = [report]
    dist.broadcast_object_list(box, src=0)  # <- bug
else:
    reports = [None] * dist.get_world_size()
    dist.all_gather_object(reports, report)
