"""One rank of the overhead benchmark: times all_reduce over Gloo and prints the medians as JSON on rank 0.

Started by ``overhead.py``, which sets the launcher's variables and switches the checker under test on by the
environment alone: what is timed here is a program that knows nothing of it. With ``turns`` in place of sizes, as
``hot_path.py`` starts it, a rank makes calls of 4 bytes as each line of its input says: the pattern, the number of
calls, and the seconds between two. It answers with the seconds of CPU of its thread, and of wall time, of one call.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

WARM_UP = 10
BATCH = 16
Measure = Callable[[torch.Tensor], float]


def synchronous(tensor: torch.Tensor) -> float:
    """Seconds of one call that returns when it is done."""
    start = time.perf_counter()
    dist.all_reduce(tensor)
    return time.perf_counter() - start


def asynchronous(tensor: torch.Tensor) -> float:
    """Seconds of one call and the wait for it."""
    start = time.perf_counter()
    _wait(dist.all_reduce(tensor, async_op=True))
    return time.perf_counter() - start


def batched(tensor: torch.Tensor) -> float:
    """Seconds per call of a batch that is launched as a whole before the first wait, as DDP's buckets are."""
    tensors = [tensor.clone() for _ in range(BATCH)]
    start = time.perf_counter()
    works = [dist.all_reduce(each, async_op=True) for each in tensors]
    for work in works:
        _wait(work)
    return (time.perf_counter() - start) / BATCH


def _wait(work: dist.Work | None) -> None:
    if work is None:
        raise RuntimeError("all_reduce(async_op=True) returned None: this process is not a member of the group")
    work.wait()


PATTERNS: dict[str, Measure] = {"sync": synchronous, "async": asynchronous, f"async x{BATCH}": batched}


def median(measure: Measure, size: int, iterations: int) -> float:
    """The median over the iterations, after a warm-up and a barrier; ``size`` is in bytes."""
    tensor = torch.zeros(size // 4)
    for _ in range(WARM_UP):
        measure(tensor)
    dist.barrier()
    return statistics.median(measure(tensor) for _ in range(iterations))


def check_variant(variant: str) -> None:
    """Refuse to time something else than what was asked for."""
    wrapped = type(dist.group.WORLD).__module__.partition(".")[0] == "simcoll"
    if wrapped != (variant not in ("plain", "DETAIL")):
        raise SystemExit(f"variant {variant}, and the group is a {type(dist.group.WORLD)}: is simcoll installed here?")


def stop_recording() -> None:
    """Leave the process group as it is, with nothing to do but to pass calls on."""
    from simcoll.recorder.session import activate

    activate(None)


def take_turns() -> None:
    """Make calls until the input ends."""
    for pattern in PATTERNS:
        repeat(pattern, WARM_UP, 0)
    print("ready", flush=True)
    for line in sys.stdin:
        pattern, calls, pause = line.split()
        dist.barrier()
        print(json.dumps(repeat(pattern, int(calls), float(pause))), flush=True)


def repeat(pattern: str, calls: int, pause: float) -> tuple[float, float]:
    """Seconds of CPU and of wall time of one call; the waits between take some CPU, too, whatever is measured."""
    tensor, wall, began = torch.zeros(1), 0.0, time.thread_time()
    for _ in range(calls):
        wall += PATTERNS[pattern](tensor)
        time.sleep(pause)
    return (time.thread_time() - began) / calls, wall / calls


def begin(variant: str) -> None:
    """Make the group that a variant measures."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    check_variant(variant)
    if variant == "forwarded":
        stop_recording()


def main(variant: str, sizes: list[int], iterations: int) -> None:
    """Time every pattern at every size."""
    begin(variant)
    rows = [
        {"size": size, "pattern": name, "seconds": median(measure, size, max(5, iterations // _calls(name)))}
        for size in sizes
        for name, measure in PATTERNS.items()
    ]
    if dist.get_rank() == 0:
        print(json.dumps(rows), flush=True)
    dist.barrier()
    dist.destroy_process_group()
    # What a checker leaves running must not keep the benchmark: its result is out.
    sys.stdout.flush()
    os._exit(0)


def _calls(pattern: str) -> int:
    return BATCH // 2 if pattern.endswith(str(BATCH)) else 1


if __name__ == "__main__":
    if sys.argv[2] == "turns":
        begin(sys.argv[1])
        take_turns()
        os._exit(0)
    main(sys.argv[1], [int(size) for size in sys.argv[2].split(",")], int(sys.argv[3]))
