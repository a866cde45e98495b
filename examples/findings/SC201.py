"""One rank waits for a batch from its loader, whose worker has given up; the others wait for its gradient.

Nothing is wrong with the collective: rank 1 never comes to it. The report says where it is instead.

Run: simcoll run --stall 3 --standalone --nproc-per-node 3 examples/findings/SC201.py
simcoll: SC201 rank 1
"""

import queue
import threading

import torch
import torch.distributed as dist


def main() -> None:
    dist.init_process_group("gloo")
    batches: queue.Queue[torch.Tensor] = queue.Queue()
    threading.Thread(target=load, args=(batches, 2 if dist.get_rank() == 1 else 4)).start()
    weight = torch.zeros(8)
    for _ in range(4):
        gradient = next_batch(batches).mean(dim=0)
        dist.all_reduce(gradient)
        weight -= 0.1 * gradient
    dist.destroy_process_group()


def load(batches: queue.Queue[torch.Tensor], files: int) -> None:
    for _ in range(files):
        batches.put(torch.ones(16, 8))


def next_batch(batches: queue.Queue[torch.Tensor]) -> torch.Tensor:
    # Bug: should have a timeout, so that a loader that has ended is an error of its own.
    return batches.get()


if __name__ == "__main__":
    main()
