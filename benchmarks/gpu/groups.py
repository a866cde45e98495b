"""Checks of `gpu_check`: how groups are made, split, shrunk, aborted and ended; several backends in one group."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from benchmarks.gpu.check import Place, SkippedCheck, check
from benchmarks.gpu.collectives import everybody, own

SECTION = "groups"


def summed(place: Place, group: Any = None, ranks: list[int] | None = None) -> None:
    """Make an all_reduce on a group of these ranks (default: all) and see that it adds up."""
    tensor = place.tensor(own(place.rank))
    dist.all_reduce(tensor, group=group)
    everyone = everybody(place)
    place.same(tensor, torch.stack([everyone[rank] for rank in ranks or range(place.size)]).sum(0))


@check(SECTION, "new_group, destroy_process_group")
def new_group(place: Place) -> None:
    """A second group of all, one of each rank alone, and the default group beside them."""
    second = dist.new_group()
    alone = [dist.new_group([rank]) for rank in range(place.size)][place.rank]
    for group, ranks in ((second, None), (alone, [place.rank]), (None, None)):
        summed(place, group, ranks)
    dist.destroy_process_group(second)
    summed(place)


@check(SECTION, "default group with device_id: eager init", cuda=True, backends=("nccl",), start="eager")
def eager(place: Place) -> None:
    """The communicator is there before the first call."""
    group = dist.group.WORLD
    if group is None or group.bound_device_id != place.device:
        raise AssertionError(f"bound_device_id: expected {place.device}, got {getattr(group, 'bound_device_id', None)}")
    summed(place)


@check(SECTION, "split_group", cuda=True, backends=("nccl",), start="eager")
def split(place: Place) -> None:
    """Split the communicator in two (in one, where there is one rank)."""
    half = max(1, place.size // 2)
    parts = [part for part in (list(range(half)), list(range(half, place.size))) if part]
    mine = next(part for part in parts if place.rank in part)
    group = dist.split_group(split_ranks=parts)
    summed(place, group, mine)
    summed(place)


@check(SECTION, "shrink_group", ranks=2, cuda=True, backends=("nccl",), start="eager", alone=True, seconds=90.0)
def shrink(place: Place) -> None:
    """Go on without the last rank, which makes no call any more."""
    if not hasattr(dist, "shrink_group"):
        raise SkippedCheck(f"torch {torch.__version__} has no shrink_group")
    summed(place)
    place.settle()
    if place.rank == place.size - 1:
        return
    group = dist.shrink_group([place.size - 1])
    tensor = place.tensor(own(place.rank))
    dist.all_reduce(tensor, group=group)
    place.same(tensor, torch.stack(everybody(place)[:-1]).sum(0))


@check(SECTION, "abort of one group, the others go on", cuda=True, backends=("nccl",))
def abort(place: Place) -> None:
    """A group with a call behind it is aborted."""
    group = dist.new_group()
    summed(place, group)
    place.settle()
    distributed_c10d._abort_process_group(group)
    summed(place)


@check(SECTION, "cpu:gloo,cuda:nccl in one group", cuda=True, backends=("nccl",), start="mixed")
def mixed(place: Place) -> None:
    """Calls go to the backend of their tensors' device, in turn."""
    total = torch.stack(everybody(place)).sum(0)
    for device in ("cpu", str(place.device), "cpu", str(place.device)):
        tensor = own(place.rank).to(device)
        dist.all_reduce(tensor)
        place.same(tensor, total, device)
        work = dist.all_reduce(tensor, async_op=True)
        if work is not None:
            work.wait()
        place.same(tensor, total * place.size, device)


@check(
    SECTION,
    "symmetric memory is left alone",
    modes=("detail",),
    cuda=True,
    kernels=True,
    backends=("nccl",),
    start="eager",
    alone=True,
)
def symmetric_memory(place: Place) -> None:
    """Memory that all ranks map, made and met through the group; kernels of torch's own sum over it."""
    from torch.distributed import _symmetric_memory as symmetric

    if dist.group.WORLD is None:
        raise AssertionError("there is no default group")
    tensor = symmetric.empty(1024, dtype=torch.float32, device=place.device)
    handle = symmetric.rendezvous(tensor, dist.group.WORLD)
    if handle is None or handle.world_size != place.size:
        raise AssertionError(f"rendezvous: got {handle}")
    tensor.fill_(place.rank + 1.0)
    handle.barrier()
    theirs = handle.get_buffer((place.rank + 1) % place.size, (1024,), torch.float32)
    place.same(theirs, torch.full((1024,), (place.rank + 1) % place.size + 1.0))
    handle.barrier()
    summed(place)


@check(SECTION, "devices are recorded with their index", modes=("record",), plain=False)
def recorded_devices(place: Place) -> None:
    """The rank's own black box says where its tensors are."""
    from simcoll.blackbox import read_black_box
    from simcoll.recorder.recorder import box_name

    summed(place)
    box = read_black_box(place.folder / box_name(place.rank))
    call = next(call for call in _calls(box) if call.inputs)
    found = call.inputs[0].device, call.inputs[0].index
    if found != (place.device.type, place.device.index):
        raise AssertionError(f"expected {place.device}, the black box says {found}")


def _calls(box: Any) -> list[Any]:
    return [box.signatures[index] for index in reversed(box.slots["signature"].tolist())]
