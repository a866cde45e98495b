"""Checks of `gpu_check`: streams, stream-ordered completion, and that nothing waits for the device on the host."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist

from benchmarks.gpu.check import Figures, Place, check
from benchmarks.gpu.collectives import everybody, own

SECTION = "streams"
SPIN_SECONDS = 0.4
CALLS = 20


def spin(seconds: float) -> None:
    """Keep the current stream busy for about so long, with a kernel that does nothing but wait."""
    torch.cuda._sleep(int(seconds * cycles_a_second()))


def cycles_a_second() -> float:
    """How fast the clock of ``torch.cuda._sleep`` goes: measured, since it is not the one that drivers state."""
    if not _cycles:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(1000)
        begin.record()
        torch.cuda._sleep(20_000_000)
        end.record()
        end.synchronize()
        _cycles.append(20_000_000 / (begin.elapsed_time(end) / 1e3))
    return _cycles[0]


_cycles: list[float] = []


@check(SECTION, "a call on a side stream sees what that stream did", cuda=True)
def side_stream(place: Place) -> None:
    """The tensor's values arrive on the side stream, by a copy from pinned memory."""
    total = torch.stack(everybody(place, 1 << 16)).sum(0)
    for asynchronous in (False, True):
        host = own(place.rank, 1 << 16).pin_memory()
        stream = torch.cuda.Stream(place.device)
        with torch.cuda.stream(stream):
            tensor = host.to(place.device, non_blocking=True)
            work = dist.all_reduce(tensor, async_op=asynchronous)
            if work is not None:
                work.wait()
        stream.synchronize()
        place.same(tensor, total)


@check(SECTION, "the result of a call belongs to the stream that waits for it", cuda=True)
def stream_ordered(place: Place) -> None:
    """A sum of what a spinning kernel delays: the waiting stream sees it, without the host ever waiting."""
    tensor = torch.zeros(1 << 16, device=place.device)
    other = torch.cuda.Stream(place.device)
    spin(SPIN_SECONDS / 4)
    tensor += place.rank + 1
    work = dist.all_reduce(tensor, async_op=True)
    with torch.cuda.stream(other):
        if work is not None:
            work.wait()
        doubled = tensor * 2
    other.synchronize()
    place.same(doubled, torch.full((1 << 16,), float(place.size * (place.size + 1))))


@check(SECTION, "the host goes on while the device is busy", cuda=True, backends=("nccl",))
def host_goes_on(place: Place) -> Figures:
    """Launch calls behind a spinning kernel; all have returned, waits included, before it ends."""
    tensor = torch.ones(1 << 10, device=place.device)
    dist.all_reduce(tensor)
    place.settle()
    dist.barrier()
    place.settle()
    ended, begun = torch.cuda.Event(), time.perf_counter()
    spin(SPIN_SECONDS)
    ended.record()
    for _ in range(CALLS):
        work = dist.all_reduce(tensor, async_op=True)
        if work is not None:
            work.wait()
        dist.all_reduce(tensor)
    busy, took = not ended.query(), time.perf_counter() - begun
    place.settle()
    if not busy:
        raise AssertionError(
            f"{2 * CALLS} calls returned after {took:.3f} s, when a kernel of {SPIN_SECONDS} s had ended"
        )
    return {f"host, {2 * CALLS} calls behind a kernel of {SPIN_SECONDS} s": f"{took * 1e3:.1f} ms"}


@check(SECTION, "no call synchronises with the device, says torch", cuda=True, backends=("nccl",))
def no_synchronisation(place: Place) -> None:
    """``set_sync_debug_mode("error")`` makes torch's own synchronising operations raise."""
    tensor, row = place.tensor(own(place.rank)), place.tensor(torch.zeros(4 * place.size))
    mine = place.tensor(own(place.rank))
    dist.all_reduce(tensor)
    with _synchronising_is_an_error():
        for _ in range(CALLS):
            dist.all_reduce(tensor)
            dist.all_gather_into_tensor(row, mine)
            work = dist.all_reduce(tensor, async_op=True)
            if work is not None:
                work.wait()
    place.settle()


@contextmanager
def _synchronising_is_an_error() -> Iterator[None]:
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


@check(SECTION, "high-priority streams", cuda=True, backends=("nccl",))
def high_priority(place: Place) -> None:
    """A group whose NCCL kernels go to a stream of high priority."""
    options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True)
    group = dist.new_group(pg_options=options)
    for asynchronous in (False, True):
        tensor = place.tensor(own(place.rank))
        work = dist.all_reduce(tensor, group=group, async_op=asynchronous)
        if work is not None:
            work.wait()
        place.same(tensor, torch.stack(everybody(place)).sum(0))
    dist.destroy_process_group(group)


@check(SECTION, "CUDA graph: capture, replays", cuda=True, backends=("nccl",), alone=True)
def graph(place: Place) -> None:
    """A graph with collectives, captured once and replayed; each replay sums what its input then holds."""
    given, taken = place.tensor(own(place.rank)), place.tensor(torch.zeros(4))
    side = torch.cuda.Stream(place.device)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        taken.copy_(given)
        dist.all_reduce(taken)
    torch.cuda.current_stream().wait_stream(side)
    place.settle()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        taken.copy_(given)
        dist.all_reduce(taken)
        work = dist.all_reduce(taken, async_op=True)
        if work is not None:
            work.wait()
    for replay in range(1, 4):
        given.copy_(own(place.rank) * replay)
        captured.replay()
        place.settle()
        expected = torch.stack(everybody(place)).sum(0) * replay * place.size
        place.same(taken, expected, f"replay {replay}")
    # NCCL needs a graph to be gone before its communicator.
    del captured
    place.settle()
