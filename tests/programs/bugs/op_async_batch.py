# expect: SC101 culprits=2 ranks=3
import torch
import torch.distributed as dist


def start(index: int, tensor: torch.Tensor) -> dist.Work:
    if index == 6 and dist.get_rank() == 2:
        return dist.broadcast(tensor, src=1, async_op=True)  # <- bug
    return dist.all_reduce(tensor, async_op=True)


dist.init_process_group("gloo")
buckets = [torch.ones(32) for _ in range(10)]
works = [start(index, bucket) for index, bucket in enumerate(buckets)]
for work in works:
    work.wait()
