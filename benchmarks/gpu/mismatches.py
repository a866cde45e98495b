"""Checks of `gpu_check`: planted mismatches are named, in ``detail`` before anything is launched."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from benchmarks.gpu.check import Place, check
from benchmarks.gpu.collectives import own
from benchmarks.gpu.groups import summed
from simcoll.errors import CollectiveMismatchError, MissingRankError

SECTION = "mismatches"
CHECK_SECONDS = 30.0
PAUSE_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Planted:
    """A call that rank 0 makes in another way than the rest, and the code under which it is named.

    ``harmless`` ones end on the device too: in ``check`` they are launched.
    """

    name: str
    code: str
    call: Callable[[Place], object]
    harmless: bool = False


def _operation(place: Place) -> None:
    tensor = place.tensor(own(place.rank))
    if place.rank == 0:
        dist.all_reduce(tensor)
    else:
        dist.broadcast(tensor, src=0)


def _size(place: Place) -> None:
    dist.all_reduce(place.tensor(torch.ones(4 if place.rank == 0 else 5)))


def _dtype(place: Place) -> None:
    dist.all_reduce(place.tensor(torch.ones(4), torch.int32 if place.rank == 0 else torch.float32))


def _reduce_op(place: Place) -> None:
    operator = dist.ReduceOp.SUM if place.rank == 0 else dist.ReduceOp.MAX
    dist.all_reduce(place.tensor(torch.ones(4)), op=operator)


def _root(place: Place) -> None:
    dist.broadcast(place.tensor(torch.ones(4)), src=0 if place.rank == 0 else 1)


def _shape(place: Place) -> None:
    dist.all_reduce(place.tensor(torch.ones(20, 10) if place.rank == 0 else torch.ones(10, 20)))


def _splits(place: Place) -> None:
    """Rank 0 sends one element more to rank 1 than rank 1 expects, and one less to itself than it expects of itself."""
    count, even = 2 * place.size, [2] * place.size
    sends = [1, 3, *even[2:]] if place.rank == 0 else even
    given, taken = place.tensor(torch.ones(count)), place.tensor(torch.zeros(count))
    dist.all_to_all_single(taken, given, output_split_sizes=even, input_split_sizes=sends)


def _asynchronous(place: Place) -> None:
    work = dist.all_reduce(place.tensor(torch.ones(4 if place.rank == 0 else 5)), async_op=True)
    if work is not None:
        work.wait()


PLANTED = (
    Planted("another collective", "SC101", _operation),
    Planted("another size", "SC102", _size),
    Planted("another size, asynchronous: at wait()", "SC102", _asynchronous),
    Planted("another dtype", "SC103", _dtype, harmless=True),
    Planted("another reduce op", "SC104", _reduce_op, harmless=True),
    Planted("another root", "SC105", _root),
    Planted("splits that do not fit", "SC106", _splits),
    Planted("another shape", "SC109", _shape),
)


def named(error: CollectiveMismatchError, planted: Planted) -> None:
    """Raise AssertionError unless the error has the code."""
    codes = sorted({finding.code for finding in error.findings})
    if planted.code not in codes:
        raise AssertionError(f"expected {planted.code}, got {codes or 'no finding'}: {str(error).splitlines()[0]:.160}")


def launches() -> int:
    """How many collectives the backend itself has been given."""
    group = dist.group.WORLD
    if group is None:
        raise AssertionError("there is no default group")
    plain: Any = getattr(group, "plain", group)
    return int(plain._get_sequence_number_for_group())


def in_detail(planted: Planted) -> Callable[[Place], None]:
    """Every rank raises it, the backend was given nothing, and the group can be used afterwards."""

    def run(place: Place) -> None:
        before = launches()
        try:
            planted.call(place)
        except CollectiveMismatchError as error:
            named(error, planted)
        else:
            raise AssertionError(f"{planted.name}: nothing was raised")
        if launches() != before:
            raise AssertionError(
                f"{planted.name}: the backend was given {launches() - before} calls before it was named"
            )
        summed(place)

    return run


def in_check(planted: Planted) -> Callable[[Place], None]:
    """Every rank raises it at a later call, while matching calls go on.

    Nobody waits for the device: a rank that has not raised yet may have made a call to which no other comes any more.
    """

    def run(place: Place) -> None:
        deadline, tensor = time.monotonic() + CHECK_SECONDS, place.tensor(torch.ones(4))
        try:
            planted.call(place)
            while time.monotonic() < deadline:
                dist.all_reduce(tensor)
                time.sleep(PAUSE_SECONDS)
        except CollectiveMismatchError as error:
            named(error, planted)
            if place.backend == "nccl":
                distributed_c10d._abort_process_group()
            return
        raise AssertionError(f"{planted.name}: nothing was raised within {CHECK_SECONDS:.0f} s")

    return run


for _planted in PLANTED:
    check(SECTION, f"detail names {_planted.name}", modes=("detail",), ranks=2, plain=False, verified=False)(
        in_detail(_planted)
    )
for _planted in PLANTED:
    if _planted.harmless:
        check(
            SECTION,
            f"check names {_planted.name}",
            modes=("check",),
            ranks=2,
            plain=False,
            verified=False,
            alone=True,
        )(in_check(_planted))


@check(SECTION, "a rank's own wrong call is refused, the group goes on", plain=False, verified=False)
def own_fault(place: Place) -> None:
    """An output that holds no whole number of parts: every rank's own call is wrong, in the same way."""
    try:
        dist.all_gather_into_tensor(place.tensor(torch.zeros(4 * place.size + 1)), place.tensor(torch.ones(4)))
    except (RuntimeError, ValueError):
        summed(place)
        return
    raise AssertionError("a wrong call raised nothing")


@check(
    SECTION,
    "detail names a rank that does not come",
    modes=("detail",),
    ranks=2,
    plain=False,
    verified=False,
    alone=True,
)
def absent(place: Place) -> None:
    """Rank 0 waits for the others' word, as long as the group's timeout, and says who is missing."""
    group = dist.new_group(timeout=timedelta(seconds=3))
    if place.rank == place.size - 1:
        time.sleep(6)
        return
    try:
        dist.all_reduce(place.tensor(torch.ones(4)), group=group)
    except MissingRankError as error:
        if place.size - 1 not in error.absent:
            raise AssertionError(f"expected rank {place.size - 1} to be named, got {error.absent}") from error
    else:
        raise AssertionError("nothing was raised")
