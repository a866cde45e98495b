"""What is known of a job's hosts, in files beside the black boxes: the account that ``simcoll run`` leaves of its host,
kernel logs and NCCL RAS documents that somebody put there.

The account is written where a job did not end well:

    {"schema": "simcoll.host/1", "host": "node-3", "kernel_read": true, "oom_kills": 0, "limit_hits": 0,
     "kernel": [{"time_ns": 1764000000000000000, "text": "NVRM: Xid (PCI:0000:3b:00): 79, ..."}],
     "lost": [{"node": 1, "host": "node-4", "ranks": [8, 9], "seconds": 12.5, "closed": false}]}

``kernel`` has the lines of the kernel's log since the job began that are understood; ``kernel_read`` says whether it
could be read, ``oom_kills`` how many processes were killed in the job's memory cgroup, ``limit_hits`` how often its
limit was why (null: not known). ``lost`` has the nodes that its launcher lost. A kernel log is a file ``dmesg*``
(``dmesg-HOST.txt`` names its host), a RAS document ``ncclras*.json``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Final

from simcoll.blackbox import BlackBox
from simcoll.blackbox.accounts import LaunchAccount
from simcoll.blackbox.format import SUFFIX
from simcoll.core.io import open_at_once, write_whole
from simcoll.core.trace import Trace
from simcoll.verifier.causes.facts import HostFacts, JobFacts, KernelEvent, LostNode
from simcoll.verifier.causes.kernel_log import kernel_events
from simcoll.verifier.causes.nccl_ras import ras_ranks

HOST_SCHEMA: Final = "simcoll.host/1"
HOST_PATTERN: Final = "host*.json"
KERNEL_PATTERN: Final = "dmesg*"
RAS_PATTERN: Final = "ncclras*.json"
_LIMIT: Final = 16 << 20
_MOST_EVENTS: Final = 1000
_MARGIN_NS: Final = 60_000_000_000
_FAR_NS: Final = 1 << 63


def write_host(path: Path, facts: HostFacts) -> None:
    """Write the account of one host; raises OSError."""
    document = {
        "schema": HOST_SCHEMA,
        "host": facts.host,
        "kernel_read": facts.kernel_read,
        "oom_kills": facts.oom_kills,
        "limit_hits": facts.limit_hits,
        "kernel": [{"time_ns": event.time_ns, "text": event.text} for event in facts.kernel[:_MOST_EVENTS]],
        "lost": [
            {
                "node": one.number,
                "host": one.host,
                "ranks": list(one.ranks),
                "seconds": one.seconds,
                "closed": one.closed,
            }
            for one in facts.lost
        ],
    }
    write_whole(path, json.dumps(document) + "\n")


def read_host(path: Path) -> HostFacts | None:
    """Read what :func:`write_host` wrote; None where the file is missing or is no such account."""
    try:
        document = json.loads(_text(path))
        if document["schema"] != HOST_SCHEMA:
            return None
        read = document["kernel_read"] is True
        events = [event for entry in document["kernel"] for event in kernel_events([_dated(entry)])]
        counts = (document.get(name) for name in ("oom_kills", "limit_hits"))
        kills, hits = (count if type(count) is int else None for count in counts)
        lost = tuple(map(_lost, document.get("lost", ())))
        return HostFacts(str(document["host"]), tuple(events), read, kills, hits, lost)
    except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None


def fact_files(folder: Path) -> list[Path]:
    """The files of a folder that tell of the job's hosts."""
    try:
        # Most are black boxes, of thousands of ranks: names are sorted out before they are made paths.
        names = sorted(name for name in os.listdir(folder) if not name.endswith(SUFFIX))
    except OSError:
        return []
    paths = [folder / name for name in names]
    return [path for path in paths if any(map(path.match, (HOST_PATTERN, KERNEL_PATTERN, RAS_PATTERN)))]


def job_facts(traces: Sequence[Trace], launches: Sequence[LaunchAccount], files: Iterable[Path] = ()) -> JobFacts:
    """What is known of the hosts of a job, from its records, its launchers' accounts and these files.

    Lines of kernel logs whose time is known are left out where that is not the job's.
    """
    boxes = [trace for trace in traces if isinstance(trace, BlackBox)]
    hosts = {box.rank: box.host for box in boxes} | {one.rank: each.host for each in launches for one in each.ranks}
    pids = {box.rank: box.pid for box in boxes} | {one.rank: one.pid for each in launches for one in each.ranks}
    files = list(files)
    accounts = [read_host(path) for path in files if path.match(HOST_PATTERN)]
    logs = [_kernel_log(path, set(hosts.values())) for path in files if path.match(KERNEL_PATTERN)]
    ras = [ras_ranks(_text_or_nothing(path)) for path in files if path.match(RAS_PATTERN)]
    begin, end = _span(boxes, launches)
    known = [_within(one, begin, end) for one in (*accounts, *logs) if one is not None]
    return JobFacts(hosts, pids, _by_host(known), tuple(rank for ranks in ras for rank in ranks or ()))


def _span(boxes: Sequence[BlackBox], launches: Sequence[LaunchAccount]) -> tuple[int, int]:
    """The first and the last time (ns) at which a line may be of the job; 0 and a far time where that is not known."""
    ends = [one.ended_ns for each in launches for one in each.ranks]
    begin = min((box.created_ns for box in boxes), default=0) - _MARGIN_NS
    return max(begin, 0), max(ends) + _MARGIN_NS if ends and all(ends) else _FAR_NS


def _within(one: HostFacts, begin: int, end: int) -> HostFacts:
    return replace(
        one, kernel=tuple(event for event in one.kernel if not event.time_ns or begin <= event.time_ns <= end)
    )


def _by_host(found: Iterable[HostFacts]) -> tuple[HostFacts, ...]:
    """The facts of each host together; a line that two files have is kept once, in the one that dates it."""
    together: dict[str, HostFacts] = {}
    for one in found:
        other = together.setdefault(one.host, HostFacts(one.host))
        events: dict[str, KernelEvent] = {}
        for event in sorted((*other.kernel, *one.kernel), key=lambda event: -event.time_ns):
            events.setdefault(event.text, event)
        kills, hits = _sum(other.oom_kills, one.oom_kills), _sum(other.limit_hits, one.limit_hits)
        kernel = tuple(sorted(events.values(), key=lambda event: event.time_ns))
        lost = tuple(dict.fromkeys((*other.lost, *one.lost)))
        together[one.host] = HostFacts(one.host, kernel, one.kernel_read or other.kernel_read, kills, hits, lost)
    return tuple(together.values())


def _sum(one: int | None, other: int | None) -> int | None:
    return other if one is None else one + (other or 0)


def _kernel_log(path: Path, hosts: set[str]) -> HostFacts:
    """A kernel log that somebody put there: the host is in its name, or the job has only one."""
    named = path.name.removeprefix("dmesg").lstrip("-_.").removesuffix(".txt").removesuffix(".log")
    host = named if named in hosts else next(iter(hosts)) if len(hosts) == 1 else ""
    return HostFacts(host, tuple(kernel_events(_text_or_nothing(path).splitlines())), kernel_read=True)


def _lost(entry: dict[str, object]) -> LostNode:
    number, ranks, seconds = entry["node"], entry["ranks"], entry["seconds"]
    if type(number) is not int or not isinstance(ranks, list) or not all(type(rank) is int for rank in ranks):
        raise TypeError("a lost node")
    if not isinstance(seconds, int | float):
        raise TypeError("a lost node")
    return LostNode(number, str(entry["host"]), tuple(ranks), float(seconds), entry["closed"] is True)


def _dated(entry: dict[str, object]) -> str:
    """A line as :func:`simcoll.verifier.causes.kernel_log.kernel_events` reads it with its time."""
    time_ns, text = entry["time_ns"], entry["text"]
    if type(time_ns) is not int or not isinstance(text, str) or time_ns <= 0:
        return str(text)
    return f"{datetime.fromtimestamp(time_ns // 1000 / 1e6, timezone.utc).isoformat(timespec='microseconds')} {text}"


def _text(path: Path) -> str:
    with open_at_once(path) as file:
        return file.read(_LIMIT).decode("utf-8", "replace")


def _text_or_nothing(path: Path) -> str:
    try:
        return _text(path)
    except OSError:
        return ""
