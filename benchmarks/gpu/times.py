"""Checks of `gpu_check`: the device's own times in the black box, beside CUDA events of the program, and bandwidths."""

from __future__ import annotations

import statistics

import torch
import torch.distributed as dist

from benchmarks.gpu.check import Figures, Place, check
from simcoll.blackbox import read_black_box
from simcoll.core.record import Record
from simcoll.core.trace import record_at
from simcoll.recorder.recorder import box_name
from simcoll.recorder.session import own_recorders
from simcoll.spec.collectives import COLLECTIVES

SECTION = "times"
CALLS = 20
SIZES = {"1 MiB": 1 << 20, "64 MiB": 64 << 20, "512 MiB": 512 << 20}


def recorded(place: Place, count: int) -> list[Record]:
    """The last records of this rank's own black box."""
    for recorder in own_recorders():
        recorder.event("flush")
    box = read_black_box(place.folder / box_name(place.rank))
    records = (record_at(box, index) for index in range(len(box.slots)))
    return [record for record in records if record is not None][-count:]


def between_events(place: Place, tensor: torch.Tensor) -> list[float]:
    """Seconds of each of so many calls by the program's own CUDA events around them."""
    events = []
    for _ in range(CALLS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        dist.all_reduce(tensor)
        end.record()
        events.append((begin, end))
    place.settle()
    return [begin.elapsed_time(end) / 1e3 for begin, end in events]


@check(
    SECTION,
    "device times are recorded, and those of CUDA events",
    modes=("record",),
    cuda=True,
    backends=("nccl",),
    plain=False,
    alone=True,
    quiet=True,
    seconds=150.0,
)
def device_times(place: Place) -> Figures:
    """The same calls, timed by simcoll and by the program; and the bus bandwidth that they make."""
    told: dict[str, str] = {}
    for name, size in SIZES.items():
        tensor = torch.ones(size // 4, device=place.device)
        dist.all_reduce(tensor)
        place.settle()
        seen = statistics.median(between_events(place, tensor))
        records = [
            record for record in recorded(place, CALLS) if getattr(record, "on_device", False) and record.finished_ns
        ]
        if len(records) < CALLS // 2:
            raise AssertionError(f"{name}: {len(records)} of {CALLS} calls have times of the device")
        mine = statistics.median((record.finished_ns - record.started_ns) / 1e9 for record in records)
        # Events around a call hold its launch too: some microseconds, whatever the size.
        if not seen / 3 - 30e-6 <= mine <= seen * 1.5 + 30e-6:
            raise AssertionError(f"{name}: CUDA events say {seen * 1e6:.1f} us, the black box {mine * 1e6:.1f} us")
        # One rank alone moves nothing between ranks: its bus bandwidth is 0.
        bus = COLLECTIVES["all_reduce"].traffic(place.size) * size / mine
        told[f"all_reduce {name}: events, black box, bus bandwidth"] = (
            f"{seen * 1e6:.1f} us, {mine * 1e6:.1f} us, {bus / 1e9:.1f} GB/s"
        )
    return told
