"""Learns what a host's kernel says of a job while it runs: its log, and kills in the memory cgroup.

Both are read without privileges that the process does not have: where the kernel keeps its log to itself
(``kernel.dmesg_restrict``), or there is no such cgroup, that is not known.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from simcoll.verifier.causes.facts import HostFacts
from simcoll.verifier.causes.kernel_log import kernel_events

_KMSG: Final = Path("/dev/kmsg")
_CGROUPS: Final = Path("/sys/fs/cgroup")
_RECORD_BYTES: Final = 8192
"""A read of /dev/kmsg gives one record, at most so long (PRINTK_MESSAGE_MAX of Linux is 2,048)."""

_MOST_RECORDS: Final = 1 << 20
_KILLS = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)
_EARLIER_NS: Final = 1_000_000_000
"""The kernel's clock and the wall clock may drift apart by so much."""


class HostWatch:
    """Begins to watch this host. ``own`` is where the kernel says to which cgroups this process belongs."""

    def __init__(self, kmsg: Path = _KMSG, cgroups: Path = _CGROUPS, own: Path = Path("/proc/self/cgroup")) -> None:
        self._kmsg = kmsg
        self._counter = _counter(cgroups, own)
        self._begun_ns = time.time_ns()
        self._before = self._kills()

    def facts(self) -> HostFacts:
        """What has happened on this host since the watch began."""
        booted_ns = time.time_ns() - time.monotonic_ns()
        lines = _records(self._kmsg)
        events = kernel_events(lines or (), booted_ns=booted_ns)
        since = [event for event in events if event.time_ns >= self._begun_ns - _EARLIER_NS]
        now = self._kills()
        kills = None if now is None or self._before is None else now - self._before
        return HostFacts(socket.gethostname(), tuple(since), lines is not None, kills)

    def _kills(self) -> int | None:
        """How many processes were killed in the cgroup for want of memory, ever."""
        if self._counter is None:
            return None
        with contextlib.suppress(OSError, ValueError):
            if (found := _KILLS.search(self._counter.read_text(encoding="ascii"))) is not None:
                return int(found[1])
        return None


def _counter(cgroups: Path, own: Path) -> Path | None:
    """The file that counts the kills: ``memory.events`` of cgroup v2, ``memory.oom_control`` of v1."""
    try:
        lines = own.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return None
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        below = path.lstrip("/")
        v1 = "memory" in controllers.split(",")
        file = cgroups / "memory" / below / "memory.oom_control" if v1 else cgroups / below / "memory.events"
        if (v1 or not controllers) and file.is_file():
            return file
    return None


def _records(kmsg: Path) -> list[str] | None:
    """All records that the kernel still has; None where it may not be asked."""
    try:
        descriptor = os.open(kmsg, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return list(_read(descriptor))
    except OSError:
        return None
    finally:
        os.close(descriptor)


def _read(descriptor: int) -> Iterator[str]:
    for _ in range(_MOST_RECORDS):
        try:
            record = os.read(descriptor, _RECORD_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno == errno.EPIPE:
                continue  # records were overwritten meanwhile: the next read begins at the oldest that is left
            raise
        if not record:
            return
        # The lines after the first, which begin with a space, name the device.
        yield record.decode("utf-8", "replace").partition("\n")[0]
