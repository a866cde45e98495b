# expect: SC102 culprits=2 ranks=3
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
bucket = torch.ones(10 if dist.get_rank() == 2 else 12)
future = dist.all_reduce(bucket, async_op=True).get_future()  # <- bug
print(future.then(lambda done: done.value()[0] / 3).wait())
