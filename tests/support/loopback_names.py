"""The loopback's addresses have names in a file, for this process and its children alone (Linux, root).

A TCPStore looks up the name of every peer that connects, on its only thread. The hosts file of most systems knows
127.0.0.1, but not ``::ffff:127.0.0.1``, as which a store sees it: that goes to a resolver. A query that is lost on the
way takes five seconds, in which all ranks wait. So does one of 50 where these tests were timed.
"""

from __future__ import annotations

import ctypes
import os
import tempfile
from pathlib import Path

HOSTS = Path("/etc/hosts")
NAMES = "::1 localhost\n::ffff:127.0.0.1 localhost\n"

_CLONE_NEWNS = 0x20000
_MS_BIND, _MS_REC, _MS_PRIVATE = 0x1000, 0x4000, 0x40000


def name_loopback() -> None:
    """Give this thread, and all that it starts, a hosts file of their own; leave all as it is where that is refused."""
    known = HOSTS.read_text() if HOSTS.exists() else ""
    if os.geteuid() or not known or NAMES in known:
        return
    libc = ctypes.CDLL(None)
    if libc.unshare(_CLONE_NEWNS) or libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None):
        return
    with tempfile.NamedTemporaryFile("w", prefix="hosts", delete=False) as copy:
        copy.write(f"{known.rstrip()}\n{NAMES}")
    os.chmod(copy.name, 0o644)  # as the system's is
    libc.mount(copy.name.encode(), bytes(HOSTS), None, _MS_BIND, None)
    os.unlink(copy.name)
