"""Two ranks on NCCL: every collective, mismatches of each kind, messages; what came of them goes to the file named."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import simcoll
from simcoll.errors import CollectiveMismatchError

Call = Callable[[bool], Any]

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
DEVICE = torch.device("cuda", RANK)
coalescing = dist.distributed_c10d._coalescing_manager


def on_gpu(*shape: int, value: float = 0.0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.full(shape, value, dtype=dtype).to(DEVICE)


def parts(*sizes: int) -> list[torch.Tensor]:
    return [on_gpu(size) for size in sizes]


def at_root(*sizes: int) -> list[torch.Tensor] | None:
    return parts(*sizes) if RANK == 0 else None


GOOD: dict[str, Call] = {
    "all_reduce": lambda later: dist.all_reduce(on_gpu(4), async_op=later),
    "broadcast": lambda later: dist.broadcast(on_gpu(4), 0, async_op=later),
    "reduce": lambda later: dist.reduce(on_gpu(4), 1, async_op=later),
    "all_gather": lambda later: dist.all_gather(parts(2, 2), on_gpu(2), async_op=later),
    "all_gather, unequal": lambda later: dist.all_gather(parts(2, 3), on_gpu(2 + RANK), async_op=later),
    "all_gather_into_tensor": lambda later: dist.all_gather_into_tensor(on_gpu(4), on_gpu(2), async_op=later),
    "gather": lambda later: dist.gather(on_gpu(2), at_root(2, 2), 0, async_op=later),
    "scatter": lambda later: dist.scatter(on_gpu(2), at_root(2, 2), 0, async_op=later),
    "reduce_scatter": lambda later: dist.reduce_scatter(on_gpu(2), parts(2, 2), async_op=later),
    "reduce_scatter, unequal": lambda later: dist.reduce_scatter(on_gpu(2 + RANK), parts(2, 3), async_op=later),
    "reduce_scatter_tensor": lambda later: dist.reduce_scatter_tensor(on_gpu(2), on_gpu(4), async_op=later),
    "all_to_all": lambda later: dist.all_to_all(parts(2, 2), parts(2, 2), async_op=later),
    "all_to_all_single": lambda later: dist.all_to_all_single(on_gpu(4), on_gpu(4), async_op=later),
    "all_to_all_single, splits": lambda later: dist.all_to_all_single(
        on_gpu(2 + 2 * RANK), on_gpu(3), [1 + RANK, 1 + RANK], [1, 2], async_op=later
    ),
    "barrier": lambda later: dist.barrier(async_op=later),
    "batch": lambda later: batch(on_gpu(3), on_gpu(3)),
    "section": lambda later: section(3),
    "coalesced": lambda later: coalesced(3),
}

BAD: dict[str, Call] = {
    "SC101": lambda later: GOOD["broadcast" if RANK else "all_reduce"](later),
    "SC102": lambda later: dist.all_reduce(on_gpu(4 + RANK), async_op=later),
    "SC103": lambda later: dist.all_reduce(on_gpu(4, dtype=torch.float64 if RANK else torch.float32), async_op=later),
    "SC104": lambda later: dist.all_reduce(on_gpu(4), (dist.ReduceOp.SUM, dist.ReduceOp.MAX)[RANK], async_op=later),
    "SC105": lambda later: dist.broadcast(on_gpu(4), RANK, async_op=later),
    "SC106": lambda later: dist.all_to_all_single(on_gpu(4), on_gpu(4), [1 + RANK, 3 - RANK], [2, 2], async_op=later),
    "SC110": lambda later: coalesced(3 + RANK),
    "SC102 in a section": lambda later: section(3 + RANK),
}


def batch(sent: torch.Tensor, received: torch.Tensor) -> None:
    """Each rank sends to the other, and receives from it."""
    other = 1 - RANK
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, sent, other), dist.P2POp(dist.irecv, received, other)]):
        work.wait()


def section(size: int) -> None:
    """Two broadcasts that are launched together."""
    with coalescing(device=DEVICE):
        dist.broadcast(on_gpu(2), 0)
        dist.broadcast(on_gpu(size), 0)


def coalesced(size: int) -> None:
    """Two tensors in one call."""
    with coalescing(device=DEVICE):
        dist.all_reduce(on_gpu(2))
        dist.all_reduce(on_gpu(size))


def told(call: Callable[[], Any]) -> list[str]:
    """The codes of the mismatch that a call raises; what else it raises is told as it is."""
    try:
        if (work := call()) is not None:
            work.wait()
        torch.cuda.synchronize()
    except CollectiveMismatchError as error:
        return [finding.code for finding in error.findings]
    except Exception as error:
        return [f"{type(error).__name__}: {error}"]
    return []


def works() -> bool:
    """Whether the group still computes what it should."""
    tensor = on_gpu(4, value=RANK + 1.0)
    dist.all_reduce(tensor)
    later = dist.all_reduce(on_gpu(4), async_op=True)
    assert later is not None
    later.get_future().wait()
    torch.cuda.synchronize()
    return tensor.cpu().tolist() == [3.0] * 4


def good() -> dict[str, object]:
    """What matching calls raise, which is nothing."""
    found: dict[str, object] = {}
    for name, call in GOOD.items():
        for later in (False, True):
            found[f"{name}, {later}"] = told(lambda call=call, later=later: call(later))
    for turn in range(100):
        # Tags are ignored: the n-th message of a rank is the n-th that the other receives.
        if RANK == 0:
            dist.send(on_gpu(turn % 4 + 1, value=turn), 1, tag=turn % 3)
        else:
            received = on_gpu(turn % 4 + 1)
            dist.recv(received, 0, tag=turn % 5)
            torch.cuda.synchronize()
            assert received.cpu().tolist() == [turn] * (turn % 4 + 1)
    return found | {"works": works()}


def bad() -> dict[str, object]:
    """What mismatches raise, and whether the group is usable after each."""
    found: dict[str, object] = {}
    for name, call in BAD.items():
        for later in (False, True):
            found[f"{name}, {later}"] = [*told(lambda call=call, later=later: call(later)), works()]
    return found


def unequal(how: str) -> dict[str, object]:
    """The first thing that is raised where a send and its receive disagree."""
    sent, received = on_gpu(8), on_gpu(10) if how != "dtype" else on_gpu(8, dtype=torch.int32)
    waiting = on_gpu(1)
    began = time.monotonic()

    def messages() -> None:
        if how == "batch":
            batch(sent, received if RANK else on_gpu(8))
        elif RANK == 0:
            dist.send(sent, 1)
        else:
            dist.recv(received, 0)
        while time.monotonic() - began < 20:
            # Not waited for: what the host waits for behind a message that hangs, it waits for ever.
            dist.all_reduce(waiting, async_op=True)
            time.sleep(0.01)

    try:
        messages()
    except CollectiveMismatchError as error:
        return {"raised": [finding.code for finding in error.findings], "text": str(error)}
    return {"raised": [], "text": ""}


def main() -> None:
    """Do what SIMCOLL_TEST_CASE says."""
    torch.cuda.set_device(DEVICE)
    bound = {"device_id": DEVICE} if os.environ.get("SIMCOLL_TEST_BOUND") else {}
    backend = os.environ.get("SIMCOLL_TEST_BACKEND", "nccl")
    simcoll.enable(mode=os.environ["SIMCOLL_MODE"], out=os.environ["SIMCOLL_OUT"])
    dist.init_process_group(backend, timeout=timedelta(seconds=60), **bound)
    dist.all_reduce(on_gpu(1))
    name = os.environ["SIMCOLL_TEST_CASE"]
    found = {"good": good, "bad": bad}.get(name, lambda: unequal(name))()
    if "gloo" in backend:
        found["on the CPU"] = told(lambda: dist.all_reduce(torch.ones(2 + RANK)))
    Path(sys.argv[1]).write_text(json.dumps(found))
    if name in ("good", "bad"):
        dist.destroy_process_group()
        return
    # A message may hang on the GPU; the other rank has time to be told of it.
    with suppress(Exception):
        time.sleep(8)
    os._exit(0)


main()
