"""Reads lines of a kernel log: NVIDIA's Xid and SXid, kills for want of memory, uncorrected errors of memory.

A line may be a record of /dev/kmsg, or as ``dmesg``, ``dmesg --time-format iso`` or ``journalctl -k -o short-iso``
print it. Every other line is passed over. The texts are those of

* NVIDIA's Xid catalogue: ``NVRM: Xid (PCI:0000:3b:00): 79, pid=1896, name=python, GPU has fallen off the bus.``;
* NVIDIA's Fabric Manager user guide: ``nvidia-nvswitch0: SXid (PCI:0000:c2:00.0): 20034, Fatal, Link 28 ...``;
* Linux, mm/oom_kill.c: ``Out of memory: Killed process 1896 (python)``, and ``Memory cgroup out of memory: ...``;
* Linux, mm/memory-failure.c: ``Memory failure: 0x1f: Sending SIGBUS to python:1896 due to hardware memory corruption``;
* Linux, drivers/edac/edac_mc.c: ``EDAC MC0: 1 UE memory read error on ...`` (UE: uncorrected).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime
from typing import Final

from simcoll.verifier.causes.facts import KernelEvent, KernelEventKind

_LONGEST: Final = 400
"""So many characters of a line are kept."""

_KMSG = re.compile(r"\d+,\d+,(?P<us>\d+),[^;]*;(?P<text>.*)")
_ISO = re.compile(
    r"(?P<time>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d{1,6})?(?:[+-]\d\d:?\d\d|Z)) (?:\S+ kernel: )?(?P<text>.*)"
)

_PCI = r"\((?:PCI:)?(?P<device>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-9a-fA-F])?)\)"
_XID = re.compile(rf"NVRM: Xid {_PCI}: (?P<number>\d{{1,4}})\b(?P<rest>.*)")
_SXID = re.compile(rf"SXid {_PCI}: (?P<number>\d{{1,6}}), (?P<rest>.*)")
_PID = re.compile(r"\bpid='?(?P<pid>\d{1,10})\b")
_FATAL = re.compile(r"(?<![-\w])Fatal\b")
_KILLED = re.compile(r"(?P<cgroup>Memory cgroup o|O)ut of memory:? Killed process (?P<pid>\d{1,10}) \(")
_POISON = re.compile(r"Memory failure: 0x[0-9a-f]+: Sending SIGBUS to .{1,64}:(?P<pid>\d{1,10}) due to hardware memory")
_EDAC = re.compile(r"EDAC \S{1,16}: \d+ UE ")


def kernel_events(lines: Iterable[str], *, booted_ns: int = 0) -> list[KernelEvent]:
    """The lines that are understood, in order.

    ``booted_ns`` is the wall clock at which the kernel's own clock began; without it records of /dev/kmsg have no time.
    """
    return [event for line in lines if (event := _event(line, booted_ns)) is not None]


def _event(line: str, booted_ns: int) -> KernelEvent | None:
    time_ns, text = _timed(line.rstrip("\n")[: 4 * _LONGEST], booted_ns)
    said = text.strip()[:_LONGEST]
    if (xid := _XID.search(text)) is not None:
        pid = _PID.search(xid["rest"])
        fatal = _FATAL.search(xid["rest"]) is not None
        about = time_ns, int(xid["number"]), xid["device"], int(pid["pid"]) if pid else 0
        return KernelEvent(KernelEventKind.XID, said, *about, fatal=fatal)
    if (switch := _SXID.search(text)) is not None:
        fatal = switch["rest"].startswith("Fatal")
        return KernelEvent(KernelEventKind.SWITCH, said, time_ns, int(switch["number"]), switch["device"], fatal=fatal)
    if (killed := _KILLED.search(text)) is not None:
        limited = killed["cgroup"] != "O"
        return KernelEvent(KernelEventKind.OUT_OF_MEMORY, said, time_ns, pid=int(killed["pid"]), limited=limited)
    if (poison := _POISON.search(text)) is not None:
        return KernelEvent(KernelEventKind.MEMORY_ERROR, said, time_ns, pid=int(poison["pid"]))
    return KernelEvent(KernelEventKind.MEMORY_ERROR, said, time_ns) if _EDAC.search(text) else None


def _timed(line: str, booted_ns: int) -> tuple[int, str]:
    """The wall clock of a line (ns; 0: it does not say), and the rest of it."""
    if (record := _KMSG.fullmatch(line)) is not None:
        return (booted_ns + int(record["us"]) * 1000 if booted_ns else 0), record["text"]
    if (dated := _ISO.fullmatch(line)) is not None:
        stated = dated["time"].replace(",", ".").replace("Z", "+00:00")
        stated = re.sub(r"([+-]\d\d)(\d\d)$", r"\1:\2", stated)
        stated = re.sub(r"\.(\d+)", lambda digits: f".{digits[1]:0<6}", stated)
        try:
            return round(datetime.fromisoformat(stated).timestamp() * 1e6) * 1000, dated["text"]
        except ValueError:
            return 0, dated["text"]
    return 0, line
