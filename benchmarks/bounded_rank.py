"""One rank of the benchmark of memory and files, started by ``bounded.py`` in a folder that all ranks share."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist

STOPS = (0.0, 0.05, 0.25, 0.5, 0.75, 1.0)
AHEAD = 64 << 10


def resident() -> int:
    """Bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def told(calls: int, began: float, mine: int) -> Iterator[dict[str, object]]:
    """On rank 0 what all ranks hold; each has left its own number in a file by then."""
    rank = dist.get_rank()
    Path(f"held.{rank}").write_text(str(mine))
    dist.barrier()
    if rank == 0:
        held = [int(Path(f"held.{one}").read_text()) for one in range(dist.get_world_size())]
        files = sum(path.stat().st_blocks * 512 for path in Path.cwd().rglob("*.simcoll"))
        seconds = time.perf_counter() - began
        yield {"calls": calls, "seconds": seconds, "all": sum(held), "most": max(held), "files": files}
    dist.barrier()


def long(calls: int) -> Iterator[dict[str, object]]:
    """Synchronous calls, with a look now and then."""
    tensor, made, began = torch.zeros(1), 0, time.perf_counter()
    for stop in STOPS:
        while made < stop * calls:
            dist.all_reduce(tensor)
            made += 1
        yield from told(made, began, resident())


def dropped(calls: int) -> Iterator[dict[str, object]]:
    """Rank 0 makes all calls and keeps no Work, before the others make the first of them."""
    began, store = time.perf_counter(), dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), is_master=False)
    dist.all_reduce(torch.zeros(1))
    yield from told(0, began, resident())
    if dist.get_rank() > 0:
        store.wait(["ahead"])
    for _ in range(calls):
        dist.all_reduce(torch.zeros(AHEAD // 4), async_op=True)
    ahead = resident()
    store.set("ahead", "")
    yield from told(calls, began, ahead)
    yield from told(calls, began, resident())


def main(pattern: str, calls: int) -> None:
    """One rank: rank 0 prints what all hold at each stop, as JSON."""
    dist.init_process_group("gloo")
    found = list({"long": long, "dropped": dropped}[pattern](calls))
    if dist.get_rank() == 0:
        print(json.dumps(found), flush=True)
    dist.barrier()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
