"""Learns what a host's kernel says of a job while it runs: its log, and kills in the memory cgroup.

Both are read without privileges that the process does not have: where the kernel keeps its log to itself
(``kernel.dmesg_restrict``), or there is no such cgroup, that is not known. The log is read from the record on that was
the newest when the watch began: the clock of its records drifts from all others.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import socket
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from simcoll.core.clock import AHEAD_NS, now_ns
from simcoll.verifier.causes.facts import HostFacts, KernelEvent
from simcoll.verifier.causes.kernel_log import kernel_events

_KMSG: Final = Path("/dev/kmsg")
_CGROUPS: Final = Path("/sys/fs/cgroup")
_RECORD_BYTES: Final = 8192
"""A read of /dev/kmsg gives one record, at most so long (PRINTK_MESSAGE_MAX of Linux is 2,048)."""

_MOST_RECORDS: Final = 1 << 20
_KILLS = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)
_HITS = re.compile(r"^oom (\d+)$", re.MULTILINE)
"""``memory.events`` counts so how often the limit of this very cgroup, or of one below, was why there was no memory."""

_NUMBER = re.compile(r"\d+,(\d+),")
_NO_RECORD: Final = -1


class HostWatch:
    """Begins to watch this host. ``own`` is where the kernel says to which cgroups this process belongs."""

    def __init__(self, kmsg: Path = _KMSG, cgroups: Path = _CGROUPS, own: Path = Path("/proc/self/cgroup")) -> None:
        self._kmsg = kmsg
        self._counter = _counter(cgroups, own)
        self._begun_ns = now_ns()
        records = _records(kmsg)
        self._newest = None if records is None else max(map(_number, records), default=_NO_RECORD)
        self._before = self._count(_KILLS), self._count(_HITS)

    def facts(self) -> HostFacts:
        """What has happened on this host since the watch began."""
        records = None if self._newest is None else _records(self._kmsg)
        kills, hits = (
            _more(*pair) for pair in zip(self._before, (self._count(_KILLS), self._count(_HITS)), strict=True)
        )
        return HostFacts(socket.gethostname(), tuple(self._events(records or ())), records is not None, kills, hits)

    def _events(self, records: Iterable[str]) -> Iterator[KernelEvent]:
        """The events of new records; a time that the kernel's clock puts outside of the watch is moved to its edge."""
        now, newest = now_ns(), self._newest if self._newest is not None else _NO_RECORD
        new = (record for record in records if _number(record) > newest)
        for event in kernel_events(new, booted_ns=AHEAD_NS):
            yield replace(event, time_ns=min(max(event.time_ns, self._begun_ns), now))

    def _count(self, line: re.Pattern[str]) -> int | None:
        """A count of the cgroup, since it was made."""
        if self._counter is None:
            return None
        with contextlib.suppress(OSError, ValueError):
            if (found := line.search(self._counter.read_text(encoding="ascii"))) is not None:
                return int(found[1])
        return None


def _more(before: int | None, now: int | None) -> int | None:
    return None if before is None or now is None else now - before


def _number(record: str) -> int:
    """The sequence number of a record of /dev/kmsg (Documentation/ABI/testing/dev-kmsg of Linux)."""
    found = _NUMBER.match(record)
    return _NO_RECORD if found is None else int(found[1])


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
