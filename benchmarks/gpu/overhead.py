"""Checks of `gpu_check`: what ``record`` adds to a call, on top of a group in Python that only passes calls on.

Both variants take turns, block by block, in one process on one group, so that whatever slows the machine down slows
both. What is timed is how long the call keeps the host; after each block the device is waited for, out of the timing.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from benchmarks.gpu.check import Figures, Place, check
from simcoll.recorder.session import activate, active_session

SECTION = "times"
GOAL_MICROSECONDS = 10.0
BLOCKS = 40
SLOW_BLOCKS = 6
"""Where calls copy through the host's memory."""
CALLS = 25
SIZES = {"4 B": 4, "64 MiB": 64 << 20}


def synchronous(tensor: torch.Tensor) -> None:
    """A call that returns when the stream will hold its result."""
    dist.all_reduce(tensor)


def asynchronous(tensor: torch.Tensor) -> None:
    """A call and the wait for its work."""
    work = dist.all_reduce(tensor, async_op=True)
    if work is not None:
        work.wait()


PATTERNS: dict[str, Callable[[torch.Tensor], None]] = {"sync": synchronous, "async": asynchronous}


def block(place: Place, tensor: torch.Tensor, call: Callable[[torch.Tensor], None]) -> list[float]:
    """Seconds of each of a block's calls."""
    taken = []
    for _ in range(CALLS if place.backend == "nccl" else CALLS // 5):
        begin = time.perf_counter()
        call(tensor)
        taken.append(time.perf_counter() - begin)
    place.settle()
    return taken


def medians(place: Place, tensor: torch.Tensor, call: Callable[[torch.Tensor], None]) -> dict[str, float]:
    """The median microseconds of a call, forwarded and recorded, over blocks that take turns."""
    session = active_session()
    variants = {"forwarded": None, "recorded": session}
    samples: dict[str, list[float]] = {name: [] for name in variants}
    try:
        for number in range(-2, BLOCKS if place.backend == "nccl" else SLOW_BLOCKS):
            for name in sorted(variants, reverse=bool(number % 2)):
                activate(variants[name])
                taken = block(place, tensor, call)
                samples[name] += taken if number >= 0 else []
    finally:
        activate(session)
    return {name: statistics.median(taken) * 1e6 for name, taken in samples.items()}


@check(
    SECTION,
    "record adds at most 10 us to a forwarded call",
    modes=("record",),
    plain=False,
    alone=True,
    quiet=True,
    seconds=150.0,
)
def overhead(place: Place) -> Figures:
    """4 bytes and 64 MiB, synchronous and asynchronous; judged on NCCL, told elsewhere."""
    told, over = {}, []
    for size, count in SIZES.items():
        tensor = place.tensor(torch.zeros(count // 4))
        for pattern, call in PATTERNS.items():
            found = medians(place, tensor, call)
            added = found["recorded"] - found["forwarded"]
            told[f"all_reduce {size} {pattern}: forwarded, recorded, added"] = (
                f"{found['forwarded']:.1f}, {found['recorded']:.1f}, {added:+.1f} us"
            )
            if added > GOAL_MICROSECONDS:
                over.append(f"{size} {pattern}: {added:.1f} us")
    if over and place.backend == "nccl":
        raise AssertionError(f"record adds more than {GOAL_MICROSECONDS:.0f} us a call: {'; '.join(over)}; all: {told}")
    return told
