"""What the programs of this folder share: a job on Gloo whose ranks leave their Flight Recorder dumps in a folder."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace, _dump_fr_trace_json

LINGERS = 0.5
"""Seconds that a rank stays when it has dumped: not all have started at one moment."""


def dump(rank: int) -> None:
    """Write this rank's dump into the folder that the first argument names, as JSON where the second says so."""
    folder, form = Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "pickle"
    name = f"trace_rank_{rank}" + (".json" if form == "json" else "")
    text = _dump_fr_trace_json() if form == "json" else _dump_fr_trace()
    (folder / name).write_bytes(text.encode() if isinstance(text, str) else text)


def job(main: Callable[[int], None], *, seconds: float = 3.8, timeout: float = 60) -> None:
    """Run ``main(rank)``; dump when it has ended or failed, or still hangs so many seconds after its group was made."""
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo", timeout=timedelta(seconds=timeout))
    # On a busy machine the group takes seconds to come about, which are none of waiting.
    watchdog = threading.Timer(seconds, _end, [rank])
    watchdog.daemon = True
    watchdog.start()
    try:
        main(rank)
    except RuntimeError as error:
        print(f"rank {rank}: {error}")
    _dump_once(rank)
    # A rank that left now would break the others' connections before they have dumped.
    watchdog.join()


def _dump_once(rank: int) -> None:
    if not list(Path(sys.argv[1]).glob(f"trace_rank_{rank}*")):
        dump(rank)


def _end(rank: int) -> None:
    _dump_once(rank)
    time.sleep(LINGERS)
    os._exit(0)
