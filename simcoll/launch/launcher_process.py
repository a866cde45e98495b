"""Entry point of the launcher process: ties it to its parent's life, then imports torch, which takes seconds.

``python -m simcoll.launch.launcher_process PARENT RESULT MODE OUT torchrun-arguments...``; PARENT is the process id of
its starter.
"""

from __future__ import annotations

import signal
import sys

from simcoll.core.process import die_with_parent


def main() -> int:
    """Run :func:`simcoll.launch.agent.main`; its exit code."""
    parent, *arguments = sys.argv[1:]
    die_with_parent(int(parent), signal.SIGTERM)  # torch's agent then ends the ranks
    heeded = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if heeded:
        # Ctrl-C during the import needs no traceback: the parent says it.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from simcoll.launch import agent

    if heeded:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return agent.main(arguments)


if __name__ == "__main__":
    sys.exit(main())
