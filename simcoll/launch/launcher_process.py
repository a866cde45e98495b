"""Entry point of the launcher process: ties it to its parent's life, then imports torch, which takes seconds.

``python -m simcoll.launch.launcher_process PARENT RESULT MODE OUT torchrun-arguments...``; PARENT is who starts it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> int:
    """Run :func:`simcoll.launch.agent.main`; its exit code."""
    parent, *arguments = sys.argv[1:]
    _end_with(int(parent))
    heeded = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if heeded:
        # Ctrl-C during the import needs no traceback: the parent says it.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from simcoll.launch import agent

    if heeded:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return agent.main(arguments)


def _end_with(parent: int) -> None:
    """Let the kernel end this process when the one that started it is killed: torch's agent then ends the ranks."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        # It was killed before.
        sys.exit(1)


if __name__ == "__main__":
    sys.exit(main())
