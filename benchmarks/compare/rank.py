"""One rank of a compared program: ``rank.py SECONDS PROGRAM [NAME=VALUE...] [DUMPS]``.

The default timeout of groups becomes SECONDS in place of half an hour, so that what each tool says when it is over can
be seen. The variables are set before torch looks at them; ``PROGRAM_ARGUMENTS`` holds the program's own arguments. With
DUMPS, a folder, the rank leaves its Flight Recorder dump there when it ends or is ended (SIGTERM), as torch does by
itself on NCCL. A rank that dies by another signal leaves none, as on NCCL.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import sys
import threading
import types
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace  # type: ignore[attr-defined]

ARGUMENTS = "PROGRAM_ARGUMENTS"
GROUPS: dict[str, list[int]] = {}


def leave_dump(folder: Path) -> None:
    """Write this rank's dump, unless it is there already."""
    rank = os.environ["RANK"]
    path = folder / f"dump_rank_{rank}"
    if not path.exists():
        path.write_bytes(_dump_fr_trace())
        (folder / f"groups{rank}.json").write_text(json.dumps(GROUPS))


def note_groups() -> None:
    """Note each group's members as it is made: a dump on Gloo has not got them, one on NCCL has."""
    module = vars(dist.distributed_c10d)
    make = module["_new_process_group_helper"]

    def made(world: int, rank: int, members: list[int], *rest: Any, **named: Any) -> Any:
        found = make(world, rank, members, *rest, **named)
        if isinstance(found[0], dist.ProcessGroup):
            GROUPS[found[0].group_name] = members or list(range(world))
        return found

    module["_new_process_group_helper"] = made


def dump_when_ended(folder: Path) -> None:
    """A rank that stands in C++ never runs a signal handler of Python; a thread that waits for the signal does."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    threading.Thread(target=_wait_for_end, args=[folder], daemon=True).start()
    atexit.register(leave_dump, folder)


def _wait_for_end(folder: Path) -> None:
    signal.sigwait({signal.SIGTERM})
    leave_dump(folder)
    os._exit(128 + signal.SIGTERM)


def run_as_main(path: Path) -> None:
    """Execute a program as ``python program`` would."""
    main = types.ModuleType("__main__")
    main.__file__ = str(path)
    sys.modules["__main__"] = main
    sys.argv = [str(path), *os.environ.get(ARGUMENTS, "").split()]
    sys.path[0] = str(path.parent)
    exec(compile(path.read_bytes(), str(path), "exec"), main.__dict__)


if __name__ == "__main__":
    seconds, program, *rest = sys.argv[1:]
    os.environ.update(dict(word.split("=", 1) for word in rest if "=" in word))
    dist.set_debug_level_from_env()
    vars(dist.distributed_c10d)["default_pg_timeout"] = timedelta(seconds=float(seconds))
    for name in (word for word in rest if "=" not in word):
        note_groups()
        dump_when_ended(Path(name))
    run_as_main(Path(program))
