"""The last batch of a data set that does not divide evenly: one rank gathers fewer predictions than the others.

Gloo aborts the whole process here, or waits; NCCL waits. simcoll names the rank and both counts before the call runs.

Run: simcoll run --standalone --nproc-per-node 3 examples/last_batch_is_smaller.py
simcoll: SC102 rank 2
"""

import torch
import torch.distributed as dist

SAMPLES = 22
BATCH = 4


def main() -> None:
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    for start in range(rank * BATCH, SAMPLES, world_size * BATCH):
        predictions = torch.arange(start, min(start + BATCH, SAMPLES), dtype=torch.float32)
        gathered = [torch.empty_like(predictions) for _ in range(world_size)]
        dist.all_gather(gathered, predictions)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
