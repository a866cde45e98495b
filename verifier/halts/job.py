"""The job as its records show it: calls, the ends of ranks, the stall, and the disagreements of ranks.

This module also locates ranks: the state, last call and line of a rank that others wait for, the call in which its
device is, and which process groups it began to make, of which members. ``new_group`` must be called by every rank, with
the same members, in the same order: torch names groups by counting, and a member waits for the other members under that
name. Groups made with ``use_local_synchronization`` do not count.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from simcoll.core.record import UNKNOWN_SOURCE, Event, Group, Record, Source, State, number, source_of
from simcoll.core.trace import ON_DEVICE, LaunchOutcome, Life, Stall, Trace, lives, record_at
from simcoll.verifier.agreement.columns import GroupColumns
from simcoll.verifier.agreement.mismatches import Mismatch
from simcoll.verifier.agreement.p2p_matching import Matching
from simcoll.verifier.findings.describe import record_text
from simcoll.verifier.findings.finding import CallPlace, Severity, Side, lines
from simcoll.verifier.halts.device_queue import open_rows
from simcoll.verifier.halts.failures import Failure, failures_of


def device_record(traces: Mapping[int, Trace], rank: int) -> Record | None:
    """The call at which a rank's device is; None where none is under way."""
    row = device_row(traces, rank)
    return None if row is None else record_at(traces[rank], row)


def device_row(traces: Mapping[int, Trace], rank: int, seen: dict[tuple[Life, int], bool] | None = None) -> int | None:
    """The row of the first call that is not known to have ended, or of one seen to run, where the first is not.

    A collective whose end a peer has seen is over, or nearly so, also on a rank that has not looked. A caller that asks
    for many ranks gives ``seen``, so that each collective's peers are looked at once.
    """
    seen = {} if seen is None else seen
    trace = traces.get(rank)
    if trace is None or not len(rows := open_rows(trace)):
        return None
    left = (row for row in rows.tolist() if not _ended_elsewhere(traces, trace, row, seen))
    first = next(left, int(rows[-1]))
    if _runs(trace, first):
        return first
    # A call behind one that waits runs on a stream of its own.
    return next((row for row in rows.tolist() if row > first and _runs(trace, row)), first)


def _runs(trace: Trace, row: int) -> bool:
    slot = trace.slots[row]
    return bool(int(slot["flags"]) & ON_DEVICE) and int(slot["state"]) == State.STARTED


def _ended_elsewhere(traces: Mapping[int, Trace], trace: Trace, row: int, seen: dict[tuple[Life, int], bool]) -> bool:
    slot = trace.slots[row]
    group = int(slot["group"])
    if slot["p2p_sequence"] or group >= len(trace.groups):
        return False
    life, sequence = lives(trace)[group], int(slot["sequence"])
    if (life, sequence) not in seen:
        peers = (traces[rank] for rank in life[1] if rank in traces)
        seen[life, sequence] = any(_ended_on(peer, life, sequence) for peer in peers)
    return seen[life, sequence]


def _ended_on(trace: Trace, life: Life, sequence: int) -> bool:
    """True if a rank has seen a collective end."""
    known = lives(trace)
    if life not in known:
        return False
    mine = (trace.slots["group"] == known.index(life)) & (trace.slots["p2p_sequence"] == 0)
    mine &= trace.slots["sequence"] == sequence
    return bool((trace.slots["state"][mine] == State.COMPLETED).any())


class LastRecords(Mapping[int, Record]):
    """The last record of each rank (global) that has one, made when it is first asked for."""

    def __init__(self, traces: Mapping[int, Trace]) -> None:
        self._traces = traces
        self._made: dict[int, Record | None] = {}

    def __getitem__(self, rank: int) -> Record:
        if rank not in self._made:
            trace = self._traces[rank]
            self._made[rank] = record_at(trace, -1) if len(trace.slots) else None
        if (record := self._made[rank]) is None:
            raise KeyError(rank)
        return record

    def __iter__(self) -> Iterator[int]:
        return (rank for rank in self._traces if rank in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


@dataclass(frozen=True, slots=True)
class Job:
    """The facts about a job as a whole, by rank (global).

    ``last`` holds each rank's last record, ``ended`` the times at which ranks ended well; ``launched`` are the ranks of
    which a launcher reports. ``stall`` is the job's stall, None where nothing shows one. ``mismatches`` are those of
    severity error, ``tolerated`` those that are warnings, each in order of time. ``makings`` are the ranks that made
    the first group, the second and so on, with each rank's making of it. ``kinds`` are those of all events.
    """

    traces: Mapping[int, Trace]
    failures: Mapping[int, Failure]
    last: Mapping[int, Record]
    ended: Mapping[int, int]
    launched: frozenset[int] = frozenset()
    stall: Stall | None = None
    columns: Sequence[GroupColumns] = ()
    matching: Matching = field(default_factory=Matching)
    mismatches: Sequence[Mismatch] = ()
    tolerated: Sequence[Mismatch] = ()
    makings: Sequence[Mapping[int, Creation]] = ()
    kinds: frozenset[str] = frozenset()

    @classmethod
    def of(
        cls,
        traces: Sequence[Trace],
        outcome: LaunchOutcome | None,
        stall: Stall | None,
        columns: Sequence[GroupColumns],
        matching: Matching,
    ) -> Job:
        """The ends of the ranks; :meth:`disagreeing` adds their disagreements."""
        failures = failures_of(traces, outcome)
        by_rank = {trace.rank: trace for trace in traces}
        ended = {rank: end for rank, trace in by_rank.items() if (end := _ended(trace, failures, outcome)) is not None}
        launched = frozenset(() if outcome is None else outcome.ranks)
        kinds = frozenset({event.kind for trace in traces for event in trace.events})
        made = [] if kinds.isdisjoint(("creating", "created")) else _makings(by_rank)
        last = LastRecords(by_rank)
        return cls(by_rank, failures, last, ended, launched, stall, columns, matching, makings=made, kinds=kinds)

    def disagreeing(self, mismatches: Iterable[Mismatch]) -> Job:
        """The job with the disagreements of its ranks."""
        found = sorted(mismatches, key=lambda one: one.time_ns)
        errors = [one for one in found if one.finding.severity is Severity.ERROR]
        warnings = [one for one in found if one.finding.severity is Severity.WARNING]
        return replace(self, mismatches=errors, tolerated=warnings)

    def tells(self, *kinds: str) -> bool:
        """True if any rank wrote down an event of one of these kinds: a large job is not asked for others."""
        return not self.kinds.isdisjoint(kinds)

    @property
    def clean(self) -> bool:
        """True if every rank ended well."""
        return not self.failures and self.traces.keys() == self.ended.keys()

    @property
    def halted(self) -> bool:
        """True if it stalled or failed, as far as is known."""
        return not self.clean and (self.stall is not None or bool(self.failures))

    @property
    def size(self) -> int:
        """The number of ranks of the job, by the records."""
        return max(trace.world_size for trace in self.traces.values())

    @property
    def severity_of_delay(self) -> Severity:
        """The severity of a late rank: a warning in a job that was ended from outside, as the rank might have come."""
        return Severity.WARNING if self.stall is not None and not self.stall.over else Severity.ERROR

    def place(self, rank: int) -> CallPlace | None:
        """The place of a rank's last call, or of the one in which its device is; None where neither is recorded."""
        record = device_record(self.traces, rank) or self.last.get(rank)
        group = None if record is None else self.group(rank, record.group)
        return None if record is None or group is None else CallPlace.of(group, record, rank)

    def group(self, rank: int, name: object) -> Group | None:
        """The group of that name as a rank knows it; None where it knows none."""
        trace = self.traces.get(rank)
        return None if trace is None else next((group for group in trace.groups if group.name == name), None)

    def events(self, rank: int, kind: str) -> list[Event]:
        """The events of this kind that a rank wrote down."""
        trace = self.traces.get(rank) if self.tells(kind) else None
        return [] if trace is None else [event for event in trace.events if event.kind == kind]


def _ended(trace: Trace, failures: Mapping[int, Failure], outcome: LaunchOutcome | None) -> int | None:
    """The time at which a rank ended well by itself; None where it did not, or where that is not known."""
    end = None if outcome is None else outcome.ranks.get(trace.rank)
    exits = [event for event in trace.events if event.kind == "exit"]
    if trace.rank in failures:
        return None
    if end is not None and end.stopped:
        # The launcher stops the remaining ranks after a failure: also a rank that was at its own end by then.
        first = min((failure.time_ns for failure in failures.values()), default=0)
        return exits[-1].time_ns if exits and exits[-1].time_ns < first else None
    if end is not None and end.exit_code != 0:
        return None
    if exits:
        return exits[-1].time_ns
    return None if end is None else end.time_ns


_SHOWN = 8


def rank_locations(
    job: Job, ranks: Iterable[int], stall: Stall | None = None, group: Group | None = None
) -> list[Side]:
    """Sides with the places of ranks, those at the same place together; ``stall`` knows lines without a call.

    For ranks that have destroyed the ``group`` in which they are missed, the place is that line.
    """
    alike: dict[tuple[str, Source, bool], list[int]] = {}
    for rank in ranks:
        alike.setdefault(_place(job, rank, stall, group), []).append(rank)
    return [
        Side(tuple(members), None, lines([(members[0], source)]), note, job.place(members[0]), past)
        for (note, source, past), members in list(alike.items())[:_SHOWN]
    ]


def left_group(job: Job, rank: int, group: Group) -> Source | None:
    """The line at which a rank destroyed a group for good, after its last call on it; None where it did not."""
    trace = job.traces.get(rank)
    if trace is None:
        return None
    mine = [index for index, known in enumerate(trace.groups) if known == group]
    last = int(trace.slots["scheduled_ns"][np.isin(trace.slots["group"], mine)].max(initial=0))
    for event in reversed(trace.events):
        if event.kind == "creating" or event.time_ns < last:
            return None
        if event.kind == "destroyed" and event.data.get("group") in (None, group.name):
            return source_of(event.data)
    return None


def _place(job: Job, rank: int, stall: Stall | None, group: Group | None) -> tuple[str, Source, bool]:
    """The place of a rank, the line of it or of its last call, and True if the rank has gone on from there."""
    last = job.last.get(rank)
    has_states = rank not in job.traces or "state" not in job.traces[rank].unknown
    state, here = _state(job, rank, stall)
    left = None if group is None else left_group(job, rank, group)
    placed = here is not None or left is not None
    call = "" if last is None else record_text(last, ended_known=has_states, placed=placed)
    before = f"last call: {call}" if call else "no call of it is recorded"
    device = device_record(job.traces, rank)
    if device is not None and device != last:
        before = f"its device is in {record_text(device)}; {before}"
    if left is not None:
        return f"destroyed the group; {before}", left, True
    return f"{state}; {before}", here or (UNKNOWN_SOURCE if last is None else last.source), here is None


def _state(job: Job, rank: int, stall: Stall | None) -> tuple[str, Source | None]:
    if rank in job.failures:
        return job.failures[rank].text(), None
    if rank in job.ended:
        return "ended", None
    if stall is not None and rank in stall.stopped:
        return "its process is stopped", None
    if stall is not None and rank in stall.connecting:
        return "simcoll connects to the store from this line", stall.places.get(rank)
    if stall is not None and rank in stall.places:
        return "is at this line", stall.places[rank]
    if rank not in job.traces:
        return "left no record", None
    # Nothing shows whether a rank that no monitor watched is still alive.
    seen = rank in job.launched if stall is None else stall.watched
    return "busy elsewhere" if seen else "its record goes no further", None


@dataclass(frozen=True, slots=True)
class Creation:
    """One rank's making of a group: the ``ordinal``-th since the default group was made for the ``life``-th time.

    ``before`` is the number of groups that the rank has made by torch's own count, by which torch names the group; None
    where the record lacks it.
    """

    rank: int
    life: int
    ordinal: int
    members: tuple[int, ...]
    source: Source
    time_ns: int
    done: bool
    before: int | None = None


def creations_of(rank: int, events: Sequence[Event]) -> list[Creation]:
    """The groups that a rank made or began to make, in order."""
    done = {_ordinal_of(event) for event in events if event.kind == "created"}
    found = []
    for event in events:
        if event.kind != "creating":
            continue
        place, members = _ordinal_of(event), event.data.get("ranks")
        if place is None or not isinstance(members, list):
            continue
        if all(type(member) is int for member in members):
            source, before = source_of(event.data), number(event, "before")
            found.append(Creation(rank, *place, tuple(members), source, event.time_ns, place in done, before))
    return found


def _ordinal_of(event: Event) -> tuple[int, int] | None:
    life, ordinal = number(event, "life"), number(event, "ordinal")
    return None if life is None or ordinal is None else (life, ordinal)


def _makings(traces: Mapping[int, Trace]) -> list[Mapping[int, Creation]]:
    found: dict[tuple[int, int], dict[int, Creation]] = {}
    for rank, trace in traces.items():
        for creation in creations_of(rank, trace.events):
            found.setdefault((creation.life, creation.ordinal), {})[rank] = creation
    return [found[place] for place in sorted(found)]


def waiting_makers(made: Mapping[int, Creation], *, connecting: bool = False) -> list[Creation]:
    """The ranks inside the making of a group of theirs; ``connecting``: those inside ``init_process_group``."""
    unfinished = [creation for creation in made.values() if not creation.done]
    if connecting:
        return [creation for creation in unfinished if creation.ordinal == 0]
    return [creation for creation in unfinished if creation.rank in creation.members]


def in_the_making(job: Job) -> set[int]:
    """The ranks that are inside the making of a group of theirs."""
    return {one.rank for made in job.makings for one in waiting_makers(made)}
