"""A program of many kinds of calls, in which one rank is killed, stopped or kept busy before one of them.

``faults.py kill|stop|delay RANK CALL SEED``: the calls come from the seed, alike on every rank.
"""

import os
import random
import signal
import sys
import time

import torch
import torch.distributed as dist

KIND, VICTIM, PLACE, SEED = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
CALLS = 40


def strike() -> None:
    """What happens to the victim."""
    if KIND == "delay":
        time.sleep(60)  # <- bug
    os.kill(os.getpid(), signal.SIGKILL if KIND == "kill" else signal.SIGSTOP)


def messages(rank: int, size: int) -> None:
    """A ring of messages."""
    works = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, torch.ones(3), (rank + 1) % size),
            dist.P2POp(dist.irecv, torch.empty(3), (rank - 1) % size),
        ]
    )
    for work in works:
        work.wait()


def main() -> None:
    """The calls."""
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    pair = dist.new_group([0, 1])
    choose = random.Random(SEED)
    for call in range(CALLS):
        if (rank, call) == (VICTIM, PLACE):
            strike()
        kind = choose.choice(["all_reduce", "async", "pair", "broadcast", "gather", "barrier", "ring", "exchange"])
        if kind == "all_reduce":
            dist.all_reduce(torch.ones(5))
        elif kind == "async":
            works = [dist.all_reduce(torch.ones(2), async_op=True) for _ in range(3)]
            for work in works:
                work.wait()
        elif kind == "pair" and rank in (0, 1):
            dist.all_reduce(torch.ones(2), group=pair)
        elif kind == "broadcast":
            dist.broadcast(torch.ones(4), src=call % size)
        elif kind == "gather":
            dist.all_gather_into_tensor(torch.empty(2 * size), torch.ones(2))
        elif kind == "barrier":
            dist.barrier()
        elif kind == "ring":
            messages(rank, size)
        elif kind == "exchange":
            dist.all_to_all_single(torch.empty(size), torch.ones(size))
    dist.barrier()
    dist.destroy_process_group()


main()
