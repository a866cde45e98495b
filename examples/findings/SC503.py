"""Gradients in one flat buffer are averaged by buckets; their bounds are wrong by one, so two share an element.

Rank 0 starts both sums before it sends the next batch. They write to the same memory at once.

Run: simcoll run --standalone --nproc-per-node 2 examples/findings/SC503.py
simcoll: SC503 rank 0
"""

import torch
import torch.distributed as dist

BUCKET = 10


def main() -> None:
    dist.init_process_group("gloo")
    flat, batch = torch.ones(20), torch.empty(16, 8)
    if dist.get_rank() == 0:
        works = [average(bucket) for bucket in buckets(flat)]
        dist.send(batch.normal_(), dst=1)
        for work in works:
            work.wait()
    else:
        dist.recv(batch, src=0)
        for bucket in buckets(flat):
            average(bucket).wait()
    dist.destroy_process_group()


def buckets(flat: torch.Tensor) -> list[torch.Tensor]:
    # Bug: should be flat[start : start + BUCKET].
    return [flat[max(start - 1, 0) : start + BUCKET] for start in range(0, len(flat), BUCKET)]


def average(bucket: torch.Tensor) -> dist.Work:
    bucket /= dist.get_world_size()
    work: dist.Work = dist.all_reduce(bucket, async_op=True)
    return work


if __name__ == "__main__":
    main()
