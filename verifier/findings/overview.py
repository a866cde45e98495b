"""What a report says before its findings, as values: what the job did, how far its groups came, where its ranks are."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from simcoll.core.record import UNKNOWN_SOURCE, Group, Record, Source

DRY_RUN = "preflight"
"""The mode of what ranks recorded one by one, alone: there is no time at which anything happened."""


class Activity(Enum):
    """What a rank did when it was last seen; ``open``: a call had not ended, and nobody was seen to wait for it."""

    WAITS = "waits"
    OPEN = "open"
    OWN_CODE = "own code"
    ENDED = "ended"
    FAILED = "failed"
    UNSEEN = "unseen"


@dataclass(frozen=True, slots=True)
class Place:
    """Ranks (global) that are at the same place.

    ``record`` is the call in which they are, or after which they are; ``inside`` says which. Of ranks in several groups
    of one kind ``group`` and ``record`` are the first rank's, and ``groups`` says how many there are. ``line`` is where
    their program stands, seen from outside; ``since_ns`` when the first of them made the call (wall clock; 0: unknown);
    ``process`` what became of their processes; ``reason`` why they failed.
    """

    ranks: tuple[int, ...]
    activity: Activity
    process: str
    group: Group | None = None
    groups: int = 0
    record: Record | None = None
    inside: bool = False
    line: Source = UNKNOWN_SOURCE
    since_ns: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the groups of one kind (one description, one size) came.

    ``least`` and ``most`` are the last collectives that all recorded members finished, of the group that came least
    far and of the one that came farthest; ``least`` is None where some group finished none. ``members`` are all their
    ranks (global), ``unrecorded`` those of which there is no record.
    """

    description: str
    size: int
    groups: tuple[Group, ...]
    members: tuple[int, ...]
    least: Record | None = None
    most: Record | None = None
    unrecorded: int = 0


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """How fast devices ran the collectives of one op and size in the groups of one kind (one description, one size).

    ``bytes`` is what nccl-tests means by size, the larger of what a rank sends and receives. ``seconds`` and
    ``bus_bandwidth`` (bytes/s) are medians over the ``calls``, whose time is the shortest that any rank was inside;
    ``slowest`` is the longest of these times, that of collective ``sequence`` of ``group``.
    """

    op: str
    bytes: int
    description: str
    size: int
    calls: int
    seconds: float
    bus_bandwidth: float
    slowest: float
    group: Group
    sequence: int


@dataclass(frozen=True, slots=True)
class Summary:
    """What the job was doing. ``kinds`` are the modes or the kinds of dump that the data is from.

    Times are nanoseconds of the wall clock, 0 where no record has one. ``unknown`` are the fields of a call that the
    data never states.
    """

    world_size: int
    recorded: int
    kinds: tuple[str, ...] = ()
    begin_ns: int = 0
    end_ns: int = 0
    progress: tuple[Progress, ...] = ()
    places: tuple[Place, ...] = ()
    unknown: tuple[str, ...] = ()
    bandwidths: tuple[Bandwidth, ...] = ()


@dataclass(frozen=True, slots=True)
class History:
    """The last calls of ranks (global) that made the same ones, oldest first, as the first of them wrote them down.

    ``groups`` has the group of each call; ranks may be in different ones of a kind.
    """

    ranks: tuple[int, ...]
    records: tuple[Record, ...]
    groups: tuple[Group, ...]


class Mark(Enum):
    """How a rank's call went. ``absent``: a member that did not make it; ``outside``: no member, or not recorded."""

    DONE = "done"
    OPEN = "open"
    FAILED = "failed"
    ABSENT = "absent"
    OUTSIDE = "outside"


@dataclass(frozen=True, slots=True)
class Cell:
    """One rank's call in one column, or that it made none; ``op`` is empty then. ``differs``: from what others say."""

    mark: Mark
    op: str = ""
    differs: bool = False


@dataclass(frozen=True, slots=True)
class Column:
    """One collective or message of a timeline: ``place`` counts all columns from 0, so that gaps show.

    ``number`` is its sequence number in the group, or the message's. Groups of one kind without common ranks share
    columns: ``group`` is the first of ``groups``.
    """

    place: int
    group: Group
    groups: int
    number: int
    message: bool
    time_ns: int


@dataclass(frozen=True, slots=True)
class Timeline:
    """Ranks by collectives, in order of time. ``rows`` are ranks that did the same, with a cell a column.

    ``total`` counts the columns that there are; those with a finding and the last ones are kept.
    """

    columns: tuple[Column, ...]
    rows: tuple[tuple[tuple[int, ...], tuple[Cell, ...]], ...]
    total: int
