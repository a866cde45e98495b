"""The state of a job at one moment, as a value: groups, ranks, who waits for whom, whether it moves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from simcoll.core.record import Group, Record, Source
from simcoll.core.steps import StepMarks
from simcoll.verifier.findings.finding import Bandwidth, Finding


class Motion(Enum):
    """The state of a job: its records change, or do not while ranks wait, or all its ranks have ended."""

    MOVING = "moving"
    STANDING = "standing"
    ENDED = "ended"


class Doing(Enum):
    """The activity of a rank. ``stopped``: its launcher ended it, because another rank had failed or the job was to
    end; ``gone``: its process is not there any more, and has not said that it ended.
    """

    WAITS = "waits"
    RUNS = "runs"
    ENDED = "ended"
    FAILED = "failed"
    STOPPED = "stopped"
    GONE = "gone"

    @property
    def over(self) -> bool:
        """True if the rank makes no further call."""
        return self not in (Doing.WAITS, Doing.RUNS)


@dataclass(frozen=True, slots=True)
class RankNow:
    """One rank (global). ``record`` is the call in which it is, or after which it runs its own code; None before any.

    ``for_seconds`` is the time for which it has waited there, or since its last call; of a rank that is over, until its
    end, ``ended_ns`` (wall clock; 0 where it goes on, or the end is not known). ``waits_for`` are the ranks without
    which its call cannot end. ``waiting`` is the share of its recent time in which it waited for others, ``late`` that
    in which all others waited for it, ``step_seconds`` the time of a step, ``steps`` the number that the program has
    marked as ended; None where the records do not tell. ``exit_code`` is that of its process, where a launcher saw it;
    ``error`` is the type of the exception that ended it. ``place`` is the last call in the words of node 0: the rank
    records on another node, and nothing else of it is known; ``silent_seconds`` is the time for which that node
    has not been heard of, 0 while it answers. ``problem`` says why its file cannot be read.
    """

    rank: int
    host: str
    pid: int
    doing: Doing
    group: Group | None = None
    record: Record | None = None
    for_seconds: float = 0.0
    ended_ns: int = 0
    waits_for: tuple[int, ...] = ()
    waiting: float | None = None
    late: float | None = None
    step_seconds: float | None = None
    steps: int | None = None
    calls: int = 0
    lost: int = 0
    exit_code: int | None = None
    error: str = ""
    place: str = ""
    silent_seconds: float = 0.0
    problem: str = ""


@dataclass(frozen=True, slots=True)
class GroupNow:
    """One process group: the last collective that all its recorded members finished, and the next one.

    ``finished`` is a sequence number, 0 where the records at hand hold none. ``came`` are the ranks that have made
    collective ``finished + 1`` and not ended it, ``absent`` those that have not made it, ``unknown`` those without a
    record of this group at hand. ``for_seconds`` is the time since the first rank came. ``op`` and ``source`` are those
    of the next collective where a rank has come to it, otherwise of the last one.
    """

    group: Group
    finished: int
    op: str
    source: Source
    came: tuple[int, ...]
    absent: tuple[int, ...]
    unknown: tuple[int, ...]
    for_seconds: float


@dataclass(frozen=True, slots=True)
class JobNow:
    """One look at a job. ``still_seconds`` is the time since any record changed, at most until its end; ``why`` is one
    line on its state.

    ``findings`` are those of the verifier on the records at hand; ``proved`` says that the job can never go on.
    ``time_ns`` is when it was looked at (wall clock), ``calls_per_second`` counts the calls of all ranks since the look
    before, None at the first. ``marks`` are the steps that the lowest recorded rank has marked. ``told``: how each rank
    ended is known; ``over``: no launcher that could start the ranks again runs any more. ``unreadable`` says why files
    could not be read.
    """

    folder: str
    time_ns: int
    world_size: int
    mode: str
    motion: Motion
    still_seconds: float
    why: str
    groups: Sequence[GroupNow]
    ranks: Sequence[RankNow]
    findings: Sequence[Finding] = ()
    proved: bool = False
    bandwidths: Sequence[Bandwidth] = ()
    step_seconds: float | None = None
    calls_per_second: float | None = None
    marks: StepMarks | None = None
    told: bool = True
    over: bool = False
    unjudged: str = ""
    unreadable: tuple[str, ...] = ()

    @property
    def unseen(self) -> tuple[int, ...]:
        """The ranks without a readable record in the folder: those of nodes that record elsewhere, or that start."""
        seen = {one.rank for one in self.ranks}
        return tuple(rank for rank in range(self.world_size) if rank not in seen)
