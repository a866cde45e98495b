"""The last batch of a data set that does not divide evenly: one rank gathers fewer predictions than the others.

Gloo aborts the whole process here, or waits; NCCL waits. simcoll names the rank and both counts before the call runs.

Run: simcoll run --standalone --nproc-per-node 3 examples/findings/SC102.py
simcoll: SC102 rank 2
"""

import torch
import torch.distributed as dist

SAMPLES = 22
BATCH = 4


def main() -> None:
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    everyone = []
    for start in range(rank * BATCH, SAMPLES, world_size * BATCH):
        predictions = torch.arange(start, min(start + BATCH, SAMPLES), dtype=torch.float32)
        everyone += gather(predictions)
    dist.destroy_process_group()


def gather(predictions: torch.Tensor) -> list[torch.Tensor]:
    gathered = [torch.empty_like(predictions) for _ in range(dist.get_world_size())]
    # Bug: predictions should be padded to BATCH, and cut after the gather.
    dist.all_gather(gathered, predictions)
    return gathered


if __name__ == "__main__":
    main()
