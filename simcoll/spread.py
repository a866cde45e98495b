"""Starts one process's share of a dry run from Python, for launchers that call functions, as Ray does."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence


def run_share(arguments: Sequence[str], *, rank: int, world_size: int, master_addr: str, master_port: int) -> int:
    """Run ``simcoll preflight ARGUMENTS`` as process ``rank`` of ``world_size``; the exit code of the contract.

    These are the processes that share the dry run, not its ranks. They meet at ``master_addr``, a host's name or
    address at which process 0 can be reached, and ``master_port``, which is free there or has a c10d ``TCPStore``.
    Process 0 prints the report and writes the records. A process of its own is started, as ranks are forked: the
    caller may have threads.
    """
    stated = {
        "RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "MASTER_ADDR": master_addr,
        "MASTER_PORT": str(master_port),
        "LOCAL_WORLD_SIZE": "1",
    }
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TORCHELASTIC_")}
    command = [sys.executable, "-m", "simcoll", "preflight", *arguments]
    return subprocess.run(command, env={**inherited, **stated}, check=False).returncode
