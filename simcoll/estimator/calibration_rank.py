"""One rank of ``simcoll calibrate``: times collectives on the real backend, and rank 0 writes the times down.

``torchrun -m simcoll.estimator.calibration_rank RESULT BACKEND OPS MAX_BYTES``. Every size is visited in several
rounds, so that a machine that is busy for a while is busy for all sizes, and of each call the median counts. RESULT is
a JSON file:

    {"schema": "simcoll.measured/1", "backend": "gloo", "device": "cpu", "torch": "2.13.0", "hosts": ["a", "a"],
     "measured": [{"op": "all_reduce", "ranks": 2, "bytes": 1024, "seconds": 1.1e-4}], "held_back": [...]}

``hosts`` is the host of each rank. ``held_back`` are sizes in between, which a prediction is tried on.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.distributed as dist

from simcoll.estimator.measured import SCHEMA, SMALLEST

_ROUNDS = 15
_ROUND_SECONDS = 0.02
_MOST = 100

# The names of newer versions of torch, which warn of the older ones.
_ALL_GATHER = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
_REDUCE_SCATTER = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)

Run = Callable[[], object]


def _all_reduce(size: int, ranks: int, device: str, group: dist.ProcessGroup) -> Run:
    whole = _floats(size, device)
    return lambda: dist.all_reduce(whole, group=group)


def _broadcast(size: int, ranks: int, device: str, group: dist.ProcessGroup) -> Run:
    whole = _floats(size, device)
    return lambda: dist.broadcast(whole, group_src=0, group=group)


def _all_gather(size: int, ranks: int, device: str, group: dist.ProcessGroup) -> Run:
    whole, part = _whole_and_part(size, ranks, device)
    return lambda: _ALL_GATHER(whole, part, group=group)


def _reduce_scatter(size: int, ranks: int, device: str, group: dist.ProcessGroup) -> Run:
    whole, part = _whole_and_part(size, ranks, device)
    return lambda: _REDUCE_SCATTER(part, whole, group=group)


def _all_to_all(size: int, ranks: int, device: str, group: dist.ProcessGroup) -> Run:
    whole, _ = _whole_and_part(size, ranks, device)
    received = torch.empty_like(whole)
    return lambda: dist.all_to_all_single(received, whole, group=group)


def _whole_and_part(size: int, ranks: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    part = _floats(size // ranks, device)
    return torch.zeros(part.numel() * ranks, device=device), part


def _floats(size: int, device: str) -> torch.Tensor:
    return torch.zeros(max(1, size // 4), dtype=torch.float32, device=device)


OPS: dict[str, Callable[[int, int, str, dist.ProcessGroup], Run]] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "broadcast": _broadcast,
}
"""The measurable collectives: each gives the call for a size as nccl-tests counts it, a number of ranks, a device."""


def sizes(most: int) -> tuple[list[int], list[int]]:
    """The sizes that are measured, each twice the last, and sizes in between that are held back."""
    measured = [SMALLEST << power for power in range(40) if SMALLEST << power <= most]
    return measured, [size // 2 * 3 for size in measured[:-1:3]]


def worlds(ranks: int) -> Iterator[int]:
    """The numbers of ranks that are measured: the powers of two, and all."""
    yield from (2**power for power in range(1, ranks.bit_length()) if 2**power < ranks)
    yield ranks


def measure(ops: list[str], most: int, device: str) -> list[dict[str, object]]:
    """All rows, on every rank alike: the slowest rank's median of the rounds' medians."""
    rows: list[dict[str, object]] = []
    for ranks in worlds(dist.get_world_size()):
        group = dist.new_group(range(ranks))
        if isinstance(group, dist.ProcessGroup):
            for op in ops:
                rows += _rows(op, ranks, most, device, group)
        dist.barrier()
    return rows


def _rows(op: str, ranks: int, most: int, device: str, group: dist.ProcessGroup) -> list[dict[str, object]]:
    wanted = sorted(size for some in sizes(most) for size in some)
    runs = {size: OPS[op](size, ranks, device, group) for size in wanted}
    medians: dict[int, list[float]] = {size: [] for size in wanted}
    calls = {size: _repetitions(run, device, group) for size, run in runs.items()}
    for _ in range(_ROUNDS):
        for size, run in runs.items():
            medians[size].append(statistics.median(_once(run, device) for _ in range(calls[size])))
    seconds = torch.tensor([statistics.median(medians[size]) for size in wanted], device=device)
    dist.all_reduce(seconds, dist.ReduceOp.MAX, group=group)
    return [
        {"op": op, "ranks": ranks, "bytes": size, "seconds": took}
        for size, took in zip(wanted, seconds.tolist(), strict=True)
    ]


def _once(run: Run, device: str) -> float:
    start = time.perf_counter()
    run()
    if device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def _repetitions(run: Run, device: str, group: dist.ProcessGroup) -> int:
    """As many calls as fit a round, on all ranks of the group: as the slowest has it. The first call is to warm up."""
    took = torch.tensor([_once(run, device) for _ in range(2)], device=device)
    dist.all_reduce(took, dist.ReduceOp.MAX, group=group)
    return max(1, min(_MOST, int(_ROUND_SECONDS / took[-1].item())))


def main(result: Path, backend: str, ops: list[str], most: int) -> None:
    """Measure, and write RESULT on rank 0."""
    torch.set_num_threads(1)
    device = "cpu"
    if backend == "nccl":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        device = "cuda"
    dist.init_process_group(backend)
    hosts: list[str] = [""] * dist.get_world_size()
    dist.all_gather_object(hosts, socket.gethostname())
    rows = measure(ops, most, device)
    if dist.get_rank() == 0:
        measured, _ = sizes(most)
        document = {
            "schema": SCHEMA,
            "backend": backend,
            "device": "cpu" if device == "cpu" else torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "hosts": hosts,
            "measured": [row for row in rows if row["bytes"] in measured],
            "held_back": [row for row in rows if row["bytes"] not in measured],
        }
        result.write_text(json.dumps(document), "utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3].split(","), int(sys.argv[4]))
