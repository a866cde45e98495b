"""Checks of `gpu_check`: sends and receives, batches of them, and the coalescing manager."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _coalescing_manager

from benchmarks.gpu.check import Place, SkippedCheck, check
from benchmarks.gpu.collectives import everybody, own

SECTION = "messages and groups of calls"


def from_host(place: Place) -> None:
    """Raise SkippedCheck where Gloo would have to send what lies on a GPU: it sends and receives host memory alone."""
    if place.backend == "gloo" and place.cuda:
        raise SkippedCheck("Gloo sends and receives host memory only")


@check(SECTION, "send, recv", ranks=2)
def messages(place: Place) -> None:
    """A ring, in which the even ranks send first."""
    from_host(place)
    right, left = (place.rank + 1) % place.size, (place.rank - 1) % place.size
    incoming = place.tensor(torch.zeros(4))
    if place.rank % 2 == 0:
        dist.send(place.tensor(own(place.rank)), dst=right)
        dist.recv(incoming, src=left)
    else:
        dist.recv(incoming, src=left)
        dist.send(place.tensor(own(place.rank)), dst=right)
    place.same(incoming, own(left))


@check(SECTION, "isend, irecv", ranks=2)
def asynchronous_messages(place: Place) -> None:
    """Between ranks 0 and 1: one each way, each in flight when the next is launched."""
    from_host(place)
    if place.rank > 1:
        return
    peer = 1 - place.rank
    outgoing, incoming = place.tensor(own(place.rank)), place.tensor(torch.zeros(4))
    calls = [(dist.isend, outgoing), (dist.irecv, incoming)]
    for work in [call(tensor, peer) for call, tensor in (calls if place.rank == 0 else calls[::-1])]:
        if work is None:
            raise AssertionError("a message returned no work")
        work.wait()
    place.same(incoming, own(peer))


@check(SECTION, "batch_isend_irecv")
def batch(place: Place) -> None:
    """A ring whose messages are launched as one; with one rank, to itself."""
    from_host(place)
    if place.size == 1 and place.backend == "gloo":
        raise SkippedCheck("Gloo does not send to the rank itself")
    right, left = (place.rank + 1) % place.size, (place.rank - 1) % place.size
    for _ in range(2):
        incoming = place.tensor(torch.zeros(4))
        works = dist.batch_isend_irecv(
            [dist.P2POp(dist.isend, place.tensor(own(place.rank)), right), dist.P2POp(dist.irecv, incoming, left)]
        )
        for work in works:
            work.wait()
        place.same(incoming, own(left))


@check(SECTION, "coalescing manager: all_reduce")
def coalesced_reductions(place: Place) -> None:
    """torch makes one call of several tensors out of it; waited for at its end, and later."""
    if place.backend == "gloo" and place.cuda:
        raise SkippedCheck("Gloo has no coalesced all_reduce of CUDA tensors")
    total = torch.stack(everybody(place)).sum(0)
    for asynchronous in (False, True):
        tensors = [place.tensor(own(place.rank) * factor) for factor in (1, 2, 3)]
        with _coalescing_manager(async_ops=asynchronous) as manager:
            for tensor in tensors:
                dist.all_reduce(tensor)
        if asynchronous:
            manager.wait()
        for factor, tensor in enumerate(tensors, 1):
            place.same(tensor, total * factor)


@check(SECTION, "coalescing manager: all_gather, reduce_scatter", backends=("nccl",))
def coalesced_parts(place: Place) -> None:
    """The other collectives of which torch makes one call."""
    for asynchronous in (False, True):
        rows = [place.tensor(torch.zeros(4 * place.size)) for _ in range(2)]
        mine = place.tensor(own(place.rank))
        with _coalescing_manager(async_ops=asynchronous) as manager:
            for row in rows:
                dist.all_gather_into_tensor(row, mine)
        if asynchronous:
            manager.wait()
        for row in rows:
            place.same(row, torch.cat(everybody(place)), "all_gather")
        parts = [place.tensor(torch.zeros(4)) for _ in range(2)]
        given = [place.tensor(own(place.rank, 4 * place.size)) for _ in parts]
        with _coalescing_manager(async_ops=asynchronous) as manager:
            for part, whole in zip(parts, given, strict=True):
                dist.reduce_scatter_tensor(part, whole)
        if asynchronous:
            manager.wait()
        total = torch.stack(everybody(place, 4 * place.size)).sum(0)
        for part in parts:
            place.same(part, total[4 * place.rank : 4 * place.rank + 4], "reduce_scatter")


@check(SECTION, "grouped calls on the backend's own section", backends=("nccl",))
def grouped(place: Place) -> None:
    """Collectives of several kinds between _start_coalescing and _end_coalescing, launched as one NCCL group."""
    group, total = dist.group.WORLD, torch.stack(everybody(place)).sum(0)
    if group is None:
        raise AssertionError("there is no default group")
    tensor, mine = place.tensor(own(place.rank)), place.tensor(own(place.rank))
    row = place.tensor(torch.zeros(4 * place.size))
    group._start_coalescing(place.device)
    group.allreduce([tensor])
    group._allgather_base(row, mine)
    group._end_coalescing(place.device).wait()
    place.same(tensor, total, "all_reduce")
    place.same(row, torch.cat(everybody(place)), "all_gather")
