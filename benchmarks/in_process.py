"""Ranks in one process: an all_reduce over 64 of them, beside PyTorch's own threaded group; 1,024 in a pipeline.

``python -m benchmarks.in_process [--ranks N] [--repeats R]``. Simcoll's groups verify every call, PyTorch's verifies
none. The two threaded groups take turns in one process and one run, so that their ratio does not depend on the machine;
the harness is PyTorch's own for both. Of the repeats the median counts.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from statistics import median
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.testing._internal.common_distributed import spawn_threads_and_init_comms

import simcoll
from simcoll.backends.threaded.process_group import create_process_group

_WARM_UP = 5
Creator = Callable[[Any, int, int, timedelta], Any]


def threaded(creator: Creator, ranks: int, calls: int) -> float:
    """Seconds a call of ``ranks`` threads, as the slowest of them sees it."""
    plugins = dist.Backend._plugins
    before = plugins["THREADED"]
    plugins["THREADED"] = dist.Backend._BackendPlugin(creator, False)
    seconds: list[float] = []

    @spawn_threads_and_init_comms(world_size=ranks)  # type: ignore[untyped-decorator]
    def program(self: object) -> None:
        value = torch.ones(1)
        for _ in range(_WARM_UP):
            dist.all_reduce(value)
        began = time.perf_counter()
        for _ in range(calls):
            dist.all_reduce(value)
        seconds.append((time.perf_counter() - began) / calls)

    try:
        program(None)
    finally:
        plugins["THREADED"] = before
    return max(seconds)


def simulated(ranks: int, calls: int) -> float:
    """Seconds a call of ``ranks`` simulated ranks, recorded and verified."""

    def program(comm: Any) -> None:
        value = np.ones(1, np.float32)
        for _ in range(calls):
            comm.all_reduce(value)

    began = time.perf_counter()
    outcome = simcoll.simulate(program, ranks)
    assert outcome.ok
    return (time.perf_counter() - began) / calls


def pipeline(ranks: int, batches: int) -> float:
    """Seconds for batches that pass from rank to rank round a ring."""

    def program(comm: Any) -> int:
        batch = np.zeros(4, np.float32)
        for _ in range(batches):
            if comm.rank:
                comm.recv(batch, comm.rank - 1)
            batch += 1
            comm.send(batch, (comm.rank + 1) % comm.size)
            if not comm.rank:
                comm.recv(batch, comm.size - 1)
        return int(batch[0])

    began = time.perf_counter()
    outcome = simcoll.simulate(program, ranks, sends="buffered")
    assert outcome.ok, outcome.findings
    assert outcome.results[0] == ranks * batches
    return time.perf_counter() - began


def main(arguments: list[str]) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="benchmarks.in_process", description=__doc__)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--calls", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=7)
    given = parser.parse_args(arguments)
    theirs_creator = dist.Backend._plugins["THREADED"].creator_fn
    ours, theirs = [], []
    for _ in range(given.repeats):
        theirs.append(threaded(theirs_creator, given.ranks, given.calls))
        ours.append(threaded(create_process_group, given.ranks, given.calls))
    mine, their = median(ours), median(theirs)
    print(f"all_reduce of 4 bytes, {given.ranks} ranks in one process")
    print(f"  PyTorch's threaded group, unverified  {their * 1e3:7.2f} ms a call")
    print(f"  simcoll's threaded group, verified    {mine * 1e3:7.2f} ms a call, {mine / their:.2f} of PyTorch's")
    speed = median([simulated(given.ranks, given.calls) for _ in range(given.repeats)])
    print(f"  simulated ranks, verified, recorded   {speed * 1e3:7.2f} ms a call")
    print(f"ring pipeline, 1,024 simulated ranks, 3 batches: {pipeline(1024, 3):.2f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
