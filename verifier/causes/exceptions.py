"""Tells by an exception's type and text who should act: texts of the operating system, Python's own types."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

from simcoll.verifier.findings.causes import Cause, Restart, Strength


@dataclass(frozen=True, slots=True)
class Told:
    """What an exception tells: who should act, whether a restart helps, and why."""

    cause: Cause
    strength: Strength
    restart: Restart
    why: str


_ERRNO = re.compile(r"\[Errno (?P<number>\d{1,3})\]")

ERRNOS: Final = {
    5: Told(Cause.MACHINE, Strength.STRONG, Restart.WITHOUT_HOSTS, "EIO: a disk or file system of the host failed"),
    30: Told(Cause.MACHINE, Strength.STRONG, Restart.WITHOUT_HOSTS, "EROFS: the file system is mounted read-only"),
    28: Told(
        Cause.MACHINE, Strength.STRONG, Restart.NO, "ENOSPC: a disk is full, and stays so until somebody clears it"
    ),
    122: Told(Cause.MACHINE, Strength.STRONG, Restart.NO, "EDQUOT: the disk quota is used up"),
    107: Told(Cause.NETWORK, Strength.WEAK, Restart.UNKNOWN, "ENOTCONN: a mounted file system has lost its server"),
    110: Told(Cause.NETWORK, Strength.WEAK, Restart.UNKNOWN, "ETIMEDOUT: the other end of a connection did not answer"),
    111: Told(Cause.NETWORK, Strength.WEAK, Restart.UNKNOWN, "ECONNREFUSED: nothing listens at the other end"),
    113: Told(Cause.NETWORK, Strength.STRONG, Restart.UNKNOWN, "EHOSTUNREACH: there is no route to the host"),
    116: Told(Cause.NETWORK, Strength.WEAK, Restart.UNKNOWN, "ESTALE: the server does not know the file any more"),
    101: Told(Cause.NETWORK, Strength.STRONG, Restart.UNKNOWN, "ENETUNREACH: the network is unreachable"),
}
"""By Linux's numbers (errno(3), include/uapi/asm-generic/errno.h), as Python puts them into the text of an OSError."""

_TEXTS: Final = {
    "No space left on device": 28,
    "Disk quota exceeded": 122,
    "Read-only file system": 30,
    "No route to host": 113,
    "Network is unreachable": 101,
}
"""The same errors in the texts of C++ and of libraries, which may state the number behind the text; NCCL does."""

_TEXT = re.compile(rf"(?P<text>{'|'.join(_TEXTS)})(?: \((?P<number>\d{{1,3}})\))?")
_IN_MEMORY = re.compile(r"/dev/shm|</torch_")  # noqa: S108 - a text of errors, no file
_NO_ROOM_IN_MEMORY: Final = Told(
    Cause.MACHINE,
    Strength.STRONG,
    Restart.NO,
    "ENOSPC: files in memory (/dev/shm) have no room left: they need a larger limit, such as a container's --shm-size",
)
_WORKER_BUS_ERROR = re.compile(r"DataLoader worker \(pid.{1,80} is killed by signal: Bus error")
_NO_ROOM_FOR_A_WORKER: Final = Told(
    Cause.MACHINE,
    Strength.WEAK,
    Restart.UNKNOWN,
    "SIGBUS in a DataLoader's worker: most likely files in memory (/dev/shm) had no room left; df /dev/shm tells",
)

_NO_MEMORY = re.compile(r"std::bad_alloc|can't allocate memory|Cannot allocate memory|\[Errno 12\]")
_MEMORY: Final = Told(
    Cause.PROGRAM, Strength.STRONG, Restart.NO, "the host's memory, or the limit of the process, does not suffice"
)
_CODE: Final = Told(Cause.PROGRAM, Strength.STRONG, Restart.NO, "an error in the program's text")
_MISTAKES: Final = frozenset(
    {
        "AttributeError",
        "IndentationError",
        "NameError",
        "NotImplementedError",
        "RecursionError",
        "SyntaxError",
        "TabError",
        "TypeError",
        "UnboundLocalError",
    }
)
"""Types that Python raises for what the text of a program says, not for its data."""


def told(kind: str, message: str) -> Told | None:
    """What an exception (the name of its type, its text) tells by itself; None where it tells nothing.

    The text of an error of the system is weak evidence without its number: a program may quote it.
    """
    number = _ERRNO.search(message)
    if number is not None and (known := ERRNOS.get(int(number["number"]))) is not None:
        # A terminal that has gone gives EIO as well, without the name of a file.
        lost_terminal = known is ERRNOS[5] and ": '" not in message[number.end() :]
        return None if lost_terminal else _where(known, message)
    if kind == "MemoryError" or _NO_MEMORY.search(message):
        return _MEMORY
    if _WORKER_BUS_ERROR.search(message):
        return _NO_ROOM_FOR_A_WORKER
    if (said := _TEXT.search(message)) is not None:
        known = _where(ERRNOS[_TEXTS[said["text"]]], message)
        numbered = said["number"] == str(_TEXTS[said["text"]])
        return known if numbered else replace(known, strength=Strength.WEAK, restart=Restart.UNKNOWN)
    return _CODE if kind in _MISTAKES else None


def _where(known: Told, message: str) -> Told:
    return _NO_ROOM_IN_MEMORY if known is ERRNOS[28] and _IN_MEMORY.search(message) else known
