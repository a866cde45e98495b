"""Checks of `gpu_check`: every collective, synchronous and asynchronous, computes what it must under each mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.gpu.check import Place, check

SECTION = "collectives"
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.uint8)


def own(rank: int, count: int = 4) -> torch.Tensor:
    """What a rank gives, on the host: numbers that say whose they are."""
    return torch.arange(1.0, count + 1) + 10 * rank


def everybody(place: Place, count: int = 4) -> list[torch.Tensor]:
    """What each rank gives."""
    return [own(rank, count) for rank in range(place.size)]


def asynchronous(call: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """Make a call that returns at once, and wait for its work."""
    work = call(*args, async_op=True, **kwargs)
    if work is None:
        raise AssertionError(f"{call.__name__}(async_op=True) returned no work")
    work.wait()


def synchronous(call: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """Make a call that returns when its result may be used."""
    call(*args, **kwargs)


WAYS: tuple[Callable[..., None], ...] = (synchronous, asynchronous)


@check(SECTION, "all_reduce")
def all_reduce(place: Place) -> None:
    """Every reduce op and dtype."""
    stacked = torch.stack(everybody(place))
    expected = {
        dist.ReduceOp.SUM: stacked.sum(0),
        dist.ReduceOp.PRODUCT: stacked.prod(0),
        dist.ReduceOp.MIN: stacked.min(0).values,
        dist.ReduceOp.MAX: stacked.max(0).values,
    }
    for way in WAYS:
        for op, result in expected.items():
            tensor = place.tensor(own(place.rank))
            way(dist.all_reduce, tensor, op=op)
            place.same(tensor, result, str(op))
        for dtype in DTYPES:
            tensor = place.tensor(own(place.rank), dtype)
            way(dist.all_reduce, tensor)
            place.same(tensor, stacked.sum(0), str(dtype))


@check(SECTION, "all_reduce, the ops that only NCCL has", backends=("nccl",))
def nccl_ops(place: Place) -> None:
    """avg, and premul_sum with a factor of its own on each rank."""
    stacked = torch.stack(everybody(place))
    factors = torch.arange(1.0, place.size + 1)
    for way in WAYS:
        tensor = place.tensor(own(place.rank))
        way(dist.all_reduce, tensor, op=dist.ReduceOp.AVG)
        place.same(tensor, stacked.mean(0), "avg")
        tensor = place.tensor(own(place.rank))
        way(dist.all_reduce, tensor, op=dist._make_nccl_premul_sum(float(factors[place.rank])))
        place.same(tensor, (stacked * factors[:, None]).sum(0), "premul_sum")


@check(SECTION, "broadcast, reduce")
def rooted(place: Place) -> None:
    """From and to the last rank."""
    root = place.size - 1
    for way in WAYS:
        tensor = place.tensor(own(place.rank))
        way(dist.broadcast, tensor, src=root)
        place.same(tensor, own(root), "broadcast")
        tensor = place.tensor(own(place.rank))
        way(dist.reduce, tensor, dst=root)
        if place.rank == root:
            place.same(tensor, torch.stack(everybody(place)).sum(0), "reduce")


@check(SECTION, "all_gather: list, into_tensor")
def all_gather(place: Place) -> None:
    """As a list, concatenated, and stacked."""
    expected = torch.stack(everybody(place))
    for way in WAYS:
        mine = place.tensor(own(place.rank))
        parts = [place.tensor(torch.zeros(4)) for _ in range(place.size)]
        way(dist.all_gather, parts, mine)
        place.same(torch.stack([part.cpu() for part in parts]), expected, "list")
        row = place.tensor(torch.zeros(4 * place.size))
        way(dist.all_gather_into_tensor, row, mine)
        place.same(row, expected.flatten(), "concatenated")
        if place.backend == "nccl":
            # Gloo wants the parts one behind the other.
            table = place.tensor(torch.zeros(place.size, 4))
            way(dist.all_gather_into_tensor, table, mine)
            place.same(table, expected, "stacked")


@check(SECTION, "reduce_scatter: list, tensor")
def reduce_scatter(place: Place) -> None:
    """Each rank gets its part of the sum."""
    count = 4 * place.size
    total = torch.stack(everybody(place, count)).sum(0)
    expected = total[4 * place.rank : 4 * place.rank + 4]
    for way in WAYS:
        part = place.tensor(torch.zeros(4))
        way(dist.reduce_scatter, part, [place.tensor(each) for each in own(place.rank, count).split(4)])
        place.same(part, expected, "list")
        part = place.tensor(torch.zeros(4))
        way(dist.reduce_scatter_tensor, part, place.tensor(own(place.rank, count)))
        place.same(part, expected, "tensor")


@check(SECTION, "all_gather and reduce_scatter of uneven parts", backends=("nccl",))
def uneven(place: Place) -> None:
    """Rank i has i + 1 elements, which Gloo does not do."""
    for way in WAYS:
        parts = [place.tensor(torch.zeros(rank + 1)) for rank in range(place.size)]
        way(dist.all_gather, parts, place.tensor(own(place.rank, place.rank + 1)))
        for rank, part in enumerate(parts):
            place.same(part, own(rank, rank + 1), "all_gather")
        mine = place.tensor(torch.zeros(place.rank + 1))
        way(dist.reduce_scatter, mine, [place.tensor(own(place.rank, rank + 1)) for rank in range(place.size)])
        sums = torch.stack([own(rank, place.rank + 1) for rank in range(place.size)]).sum(0)
        place.same(mine, sums, "reduce_scatter")


@check(SECTION, "gather, scatter")
def gather_and_scatter(place: Place) -> None:
    """To rank 0, and from it."""
    root = place.rank == 0
    for way in WAYS:
        parts = [place.tensor(torch.zeros(4)) for _ in range(place.size)] if root else None
        way(dist.gather, place.tensor(own(place.rank)), parts, dst=0)
        for rank, part in enumerate(parts or []):
            place.same(part, own(rank), "gather")
        mine = place.tensor(torch.zeros(4))
        way(dist.scatter, mine, [place.tensor(each) for each in everybody(place)] if root else None, src=0)
        place.same(mine, own(place.rank), "scatter")


@check(SECTION, "all_to_all_single: even, split")
def all_to_all_single(place: Place) -> None:
    """Rank i sends j + 1 elements to rank j where splits are given."""
    for way in WAYS:
        row = place.tensor(torch.zeros(place.size))
        way(dist.all_to_all_single, row, place.tensor(own(place.rank, place.size)))
        place.same(row, [own(rank, place.size)[place.rank] for rank in range(place.size)], "even")
        sends, takes = [rank + 1 for rank in range(place.size)], [place.rank + 1] * place.size
        row = place.tensor(torch.zeros(sum(takes)))
        given = place.tensor(own(place.rank, sum(sends)))
        way(dist.all_to_all_single, row, given, output_split_sizes=takes, input_split_sizes=sends)
        begin = sum(sends[: place.rank])
        expected = [own(rank, sum(sends))[begin : begin + place.rank + 1] for rank in range(place.size)]
        place.same(row, torch.cat(expected), "split")


@check(SECTION, "all_to_all: list", backends=("nccl",))
def all_to_all(place: Place) -> None:
    """Lists of tensors of several sizes."""
    for way in WAYS:
        outputs = [place.tensor(torch.zeros(place.rank + 1)) for _ in range(place.size)]
        way(dist.all_to_all, outputs, [place.tensor(own(place.rank, peer + 1)) for peer in range(place.size)])
        for peer, output in enumerate(outputs):
            place.same(output, own(peer, place.rank + 1), f"from {peer}")


@check(SECTION, "barrier")
def barrier(place: Place) -> None:
    """It ends."""
    for way in WAYS:
        way(dist.barrier)
    place.settle()


@check(SECTION, "functional collectives")
def functional(place: Place) -> None:
    """Those that compiled programs, DTensor and FSDP2 use."""
    from torch.distributed import _functional_collectives as functions

    stacked = torch.stack(everybody(place))
    mine, group = place.tensor(own(place.rank)), dist.group.WORLD
    place.same(functions.all_reduce(mine, "sum", group), stacked.sum(0), "all_reduce")
    place.same(functions.all_gather_tensor(mine, 0, group), stacked.flatten(), "all_gather_tensor")
    count = 4 * place.size
    given = place.tensor(own(place.rank, count))
    expected = torch.stack(everybody(place, count)).sum(0)[4 * place.rank : 4 * place.rank + 4]
    place.same(functions.reduce_scatter_tensor(given, "sum", 0, group), expected, "reduce_scatter_tensor")


@check(SECTION, "object collectives")
def objects(place: Place) -> None:
    """Pickled by torch, sent as bytes on the group's device."""
    values: list[Any] = [None] * place.size
    dist.all_gather_object(values, {"rank": place.rank})
    if values != [{"rank": rank} for rank in range(place.size)]:
        raise AssertionError(f"all_gather_object: got {values}")
    told = [f"from {place.rank}"]
    dist.broadcast_object_list(told, src=place.size - 1)
    if told != [f"from {place.size - 1}"]:
        raise AssertionError(f"broadcast_object_list: got {told}")
