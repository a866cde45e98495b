"""The report as a value: findings, rules, ranks' states, the verdict. Renderers in ``simcoll.reports`` draw it.

A :class:`Rule` is a finding's stable code, its name, its advice, and the page that explains it. A :class:`Summary`
comes before the findings: the job's activity, its groups' progress, its ranks' places.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from simcoll.core.notebook import html_table
from simcoll.core.ranges import ranks_text
from simcoll.core.record import UNKNOWN_SOURCE, Group, Record, Source
from simcoll.core.steps import StepNumber
from simcoll.core.units import counted
from simcoll.spec.call import Call
from simcoll.verifier.findings.causes import Advice

DRY_RUN = "preflight"
"""The mode of records that ranks made one by one, alone: their times have no meaning."""

SOURCES_PER_SIDE = 4
"""So many lines of a side are shown."""


class Activity(Enum):
    """The activity of a rank when it was last seen; ``open``: a call had not ended, and no thread was seen waiting."""

    WAITS = "waits"
    OPEN = "open"
    OWN_CODE = "own code"
    ENDED = "ended"
    FAILED = "failed"
    UNSEEN = "unseen"


@dataclass(frozen=True, slots=True)
class Place:
    """Ranks (global) that are at the same place.

    ``record`` is the call in which they are, or after which they are; ``inside`` says which. For ranks in several
    groups of one kind ``group`` and ``record`` are the first rank's, and ``groups`` is their number. ``line`` is the
    line of their program, seen from outside; ``since_ns`` the time at which the first of them made the call (wall
    clock; 0: unknown); ``process`` the state of their processes; ``reason`` the cause of their failure.
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
    """The progress of the groups of one kind (one description, one size).

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
    """The speed of the collectives of one op and size in the groups of one kind (one description, one size).

    ``bytes`` is the size in the sense of nccl-tests, the larger of a rank's sent and received bytes. ``seconds`` and
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
class StepsEnded:
    """The ranks (global) that have marked ``number`` steps as ended; ``seconds`` is the time of their last steps."""

    number: int
    ranks: tuple[int, ...]
    seconds: float | None


@dataclass(frozen=True, slots=True)
class Summary:
    """The activity of the job. ``kinds`` are the modes or the kinds of dump that the data is from.

    Times are nanoseconds of the wall clock, 0 where no record has one. ``unknown`` are the fields of a call that the
    data never states. ``steps`` is empty where the program marks no steps.
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
    steps: tuple[StepsEnded, ...] = ()


@dataclass(frozen=True, slots=True)
class History:
    """The last calls of ranks (global) that made the same ones, oldest first, as the first of them wrote them down.

    ``groups`` has the group of each call; ranks may be in different ones of a kind.
    """

    ranks: tuple[int, ...]
    records: tuple[Record, ...]
    groups: tuple[Group, ...]


class Mark(Enum):
    """The outcome of a rank's call. ``absent``: a member did not make it; ``outside``: no member, or not recorded."""

    DONE = "done"
    OPEN = "open"
    FAILED = "failed"
    ABSENT = "absent"
    OUTSIDE = "outside"


@dataclass(frozen=True, slots=True)
class Cell:
    """One rank's call in one column; ``op`` is empty if it made none. ``differs``: the others state something else."""

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


class Severity(Enum):
    """An error fails the command that reports it; a warning does not."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class RankSource:
    """The line from which one rank (global) made its call.

    ``callers`` of it tell the call from others that the rank made at this line; 0 if there are none, or not known.
    """

    rank: int
    source: Source
    callers: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class CallPlace:
    """The place of a call: its group, and its number among the collectives there, or among the messages of ``rank``.

    ``rank`` (global) is None for a collective.
    """

    group: Group
    number: int
    rank: int | None = None

    @classmethod
    def of(cls, group: Group, record: Record, rank: int) -> CallPlace:
        """The place of a record that this rank has of the group."""
        return cls(group, record.p2p_sequence, rank) if record.p2p_sequence else cls(group, record.sequence)


@dataclass(frozen=True, slots=True)
class Side:
    """Ranks (global) that stated the same, their statement and their lines. ``call`` is None where they made none.

    ``note`` holds in words what is no field of a call: the rank's place instead, the exception that it raised.
    ``place`` is that of the ranks' call, or of the last one of a rank that is somewhere else; None where it is that of
    the finding, or not known. ``past`` says that the ranks have gone on from their lines, ``stood`` is the place of
    ranks without lines.
    """

    ranks: tuple[int, ...]
    call: Call | None
    sources: tuple[RankSource, ...] = ()
    note: str = ""
    place: CallPlace | None = field(default=None, compare=False)
    past: bool = field(default=False, compare=False)
    stood: Source = field(default=UNKNOWN_SOURCE, compare=False)


def lines(stated: Iterable[tuple[int, Source]]) -> tuple[RankSource, ...]:
    """The distinct lines that ranks name, each with its first rank, as far as they are known; at most four."""
    found: dict[object, RankSource] = {}
    for rank, source in stated:
        if source.file and len(found) < SOURCES_PER_SIDE:
            found.setdefault((source.file, source.line), RankSource(rank, source))
    return tuple(found.values())


def record_side(rank: int, group: Group, record: Record, note: str = "") -> Side:
    """The side of one rank (global) at one of its calls."""
    return Side((rank,), record.call, lines([(rank, record.source)]), note, CallPlace.of(group, record, rank))


@dataclass(frozen=True, slots=True)
class EarlierDivergence:
    """The collective at which sides of a finding came apart before it: their calls look alike, their lines differ."""

    sequence: int
    sides: tuple[Side, ...]


@dataclass(frozen=True, slots=True)
class Parting:
    """The line at which ranks (global) went different ways, and the action of each side there, in words.

    ``behind``: it is no branch, but a comparison behind what the ranks use at their lines. ``others`` are lines that
    may have parted them as well, such as the head of the loop around a loop.
    """

    source: Source
    sides: tuple[tuple[tuple[int, ...], str], ...]
    behind: bool = field(default=False, compare=False)
    others: tuple[Source, ...] = ()


@dataclass(frozen=True, slots=True)
class Finding:
    """One row of a report.

    ``ranks`` and ``culprits`` are global ranks; an empty ``culprits`` says that no majority names one. ``differing``
    lists the fields of the call in which the sides differ, ``unknown`` those that the data cannot say. ``before``
    holds the last collectives of the group on which the ranks agreed, oldest first. ``came_apart`` is where they had
    come apart by then, if their lines tell; ``parted`` the line that parted them, if the program's text tells.
    ``step`` is the training step of its call, or the one, by the optimizers' count, from which on it is so, if the
    records tell.
    """

    code: str
    severity: Severity
    message: str
    group: Group | None = None
    sequence: int | None = None
    ranks: tuple[int, ...] = ()
    culprits: tuple[int, ...] = ()
    sides: tuple[Side, ...] = ()
    differing: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    before: tuple[Record, ...] = ()
    came_apart: EarlierDivergence | None = None
    parted: Parting | None = None
    step: StepNumber | None = field(default=None, compare=False)

    def blames(self, side: Side) -> bool:
        """True for a side all of whose ranks are culprits."""
        return bool(side.ranks) and set(side.ranks) <= set(self.culprits)


def errors_of(findings: Iterable[Finding]) -> list[Finding]:
    """The findings of severity error; the others are warnings."""
    return [finding for finding in findings if finding.severity is Severity.ERROR]


class RankStatus(Enum):
    """The end of a rank's process."""

    FINISHED = "finished"
    RUNNING = "running"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class RankState:
    """The end of one rank (global) and of its process."""

    rank: int
    status: RankStatus
    exit_code: int | None = None


class Verdict(Enum):
    """``failed`` says that the program itself failed, with or without findings on its collectives."""

    OK = "ok"
    FINDINGS = "findings"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Narrowed:
    """To which groups (by name or description) and ranks a report was narrowed, and how much that hides."""

    groups: tuple[str, ...]
    ranks: tuple[int, ...]
    hidden_errors: int
    hidden_warnings: int


@dataclass(frozen=True, slots=True)
class Coverage:
    """The part of a dry run's programs that was judged: ``run`` ranks ran, ``followed`` of them to their end.

    ``gaps`` name the parts that were not, in a few words each: the ranks, and the cause.
    """

    run: int
    followed: int
    gaps: tuple[str, ...]

    @property
    def complete(self) -> bool:
        """True if all that ran was judged."""
        return not self.gaps


@dataclass(frozen=True, slots=True)
class Report:
    """All data that a renderer needs. ``agreed`` counts the collectives on which all ranks of their group agree.

    ``messages`` counts the messages whose two ends are known and agree. ``last`` has the last call of each rank
    (global) that made one.
    ``summary`` is None where no rank left a record; ``shown`` is None where nothing is hidden. ``histories`` and
    ``timeline`` are there if they were asked for. ``coverage`` is None but for a dry run. ``advice`` says who
    should act on a job that failed; None for others, and where nothing is known of its hosts.
    """

    verdict: Verdict
    world_size: int
    mode: str
    findings: tuple[Finding, ...]
    ranks: tuple[RankState, ...]
    agreed: int = 0
    notes: tuple[str, ...] = ()
    summary: Summary | None = None
    shown: Narrowed | None = None
    histories: tuple[History, ...] = ()
    timeline: Timeline | None = None
    messages: int = 0
    coverage: Coverage | None = None
    advice: Advice | None = None
    last: Mapping[int, Record] = field(default_factory=dict)

    def _repr_html_(self) -> str:
        """The report as a notebook shows it: its findings, and who should act."""
        rows = [
            (finding.code, finding.severity.value, finding.message, ranks_text(finding.culprits))
            for finding in self.findings
        ]
        if self.advice is not None:
            one = self.advice.believed
            evidence = "; ".join(f"{each.source}: {each.text}" for each in one.evidence)
            rows.append(("cause", one.strength.value, f"{one.cause.value}: {evidence}", ranks_text(one.ranks)))
            rows.append(("restart", "", " ".join((one.restart.value, *one.hosts)), ""))
        return html_table(self._title(), rows, ("finding", "severity", "message", "culprits") if rows else ())

    def __str__(self) -> str:
        """The verdict, and a line for each finding."""
        found = (f"{finding.code} {finding.severity.value}: {finding.message}" for finding in self.findings)
        return "\n".join((self._title(), *found))

    def _title(self) -> str:
        return f"{self.verdict.value}: {counted(self.agreed, 'collective')} on {counted(self.world_size, 'rank')} agree"


@dataclass(frozen=True, slots=True)
class Rule:
    """One finding code. ``advice`` is the line that a report prints; the rest is the page of ``simcoll rules CODE``.

    ``example`` is Python, run on every rank; paragraphs are plain text. ``loses_data`` says that even a warning means a
    race or data that was lost, which ``--strict`` counts as an error; ``unplayed`` says why no scenario can play it.
    """

    code: str
    name: str
    advice: str
    means: str
    harm: str
    example: str
    remedy: str
    severity: Severity = Severity.ERROR
    loses_data: bool = False
    unplayed: str = ""

    def finding(
        self,
        message: str,
        *,
        severity: Severity | None = None,
        group: Group | None = None,
        sequence: int | None = None,
        ranks: Iterable[int] = (),
        culprits: Iterable[int] = (),
        sides: Iterable[Side] = (),
        differing: Iterable[str] = (),
        unknown: tuple[str, ...] = (),
        before: tuple[Record, ...] = (),
        step: StepNumber | None = None,
    ) -> Finding:
        """A finding of this rule, of the rule's severity unless another is given; its ranks are put in order."""
        who, known = tuple(sorted(set(ranks))), (tuple(sides), tuple(differing), unknown, before)
        stated = self.code, severity or self.severity, message, group, sequence, who, tuple(culprits)
        return Finding(*stated, *known, step=step)
