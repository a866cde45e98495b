"""What is known of a job's hosts and processes beside its records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum


class KernelEventKind(Enum):
    """The kind of a line of the kernel log. ``memory error``: an uncorrected error of the host's own memory."""

    XID = "Xid"
    SWITCH = "SXid"
    OUT_OF_MEMORY = "out of memory"
    MEMORY_ERROR = "memory error"


@dataclass(frozen=True, slots=True)
class KernelEvent:
    """A line of a kernel log that is understood.

    ``time_ns`` is wall clock, 0 where the line does not say; ``number`` that of an Xid or SXid; ``device`` its PCI
    address; ``pid`` the process that the line names, as the host numbers processes, 0 where it names none. ``limited``
    says of a kill that a cgroup's limit was reached, ``fatal`` of an error of a link or switch that it was fatal.
    """

    kind: KernelEventKind
    text: str
    time_ns: int = 0
    number: int = 0
    device: str = ""
    pid: int = 0
    limited: bool = False
    fatal: bool = False


@dataclass(frozen=True, slots=True)
class LostNode:
    """A node that this host's launcher had talked to and then lost while the job ran.

    ``host`` and ``ranks`` as far as they are known. ``closed``: its system closed the connection, when the launcher's
    process there ended, or after the machine had started anew; otherwise nothing came any more for ``seconds``.
    """

    number: int
    host: str = ""
    ranks: tuple[int, ...] = ()
    seconds: float = 0.0
    closed: bool = False


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What one host knows.

    ``oom_kills`` counts processes of the job's memory cgroup that were killed for want of memory since it began,
    ``limit_hits`` how often the limit of that cgroup was why; None: not known. ``lost`` are nodes that share no folder.
    """

    host: str
    kernel: tuple[KernelEvent, ...] = ()
    kernel_read: bool = False
    oom_kills: int | None = None
    limit_hits: int | None = None
    lost: tuple[LostNode, ...] = ()


@dataclass(frozen=True, slots=True)
class RasRank:
    """A rank of a communicator as NCCL's RAS knows it: ``host`` is an address, ``error`` the async error (0: none).

    ``missing``: it gave no data; ``unresponsive`` and ``dead`` are RAS's own words on such a rank.
    """

    rank: int
    host: str
    pid: int
    error: int = 0
    missing: bool = False
    unresponsive: bool = False
    dead: bool = False


@dataclass(frozen=True, slots=True)
class JobFacts:
    """``hosts`` and ``pids`` by global rank; the facts of each host; the ranks of communicators that RAS lists."""

    hosts: Mapping[int, str] = field(default_factory=dict)
    pids: Mapping[int, int] = field(default_factory=dict)
    by_host: tuple[HostFacts, ...] = ()
    ras: tuple[RasRank, ...] = ()

    def hosts_of(self, ranks: Iterable[int]) -> tuple[str, ...]:
        """The hosts of ranks, as far as they are known, by name."""
        return tuple(sorted({self.hosts[rank] for rank in ranks if self.hosts.get(rank)}))

    def ranks_on(self, host: str) -> tuple[int, ...]:
        """The ranks on a host."""
        return tuple(sorted(rank for rank, name in self.hosts.items() if name == host))

    def of_pid(self, host: str, pid: int) -> int | None:
        """The rank with that process on that host."""
        return next((rank for rank in self.ranks_on(host) if pid and self.pids.get(rank) == pid), None)
