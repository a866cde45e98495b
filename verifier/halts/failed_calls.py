"""Marks calls that a Gloo dump shows as ended but that must have failed, since a rank that they needed had not come.

Gloo retires a call that failed like one that ended well. But a dump shows to which calls its rank had come when it
was written.

:func:`when_it_was_ended` restores the state of a job at the time when it was ended for a stall: what its ranks did
while they were ended is no evidence. torch's own watchdog ends a job too: it has the ranks write their dumps, aborts
the communicators, and ends the processes by SIGABRT. A kernel of a communicator that was aborted ends, and so do the
calls behind it, with whatever data they hold: from the first dump on, the end of a call does not mean that it was done.
"""

from __future__ import annotations

import signal
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from simcoll.core.record import State
from simcoll.core.trace import DUMPED, LaunchOutcome, Life, Slots, Stall, Trace, altered, lives, reached
from simcoll.spec.collectives import COLLECTIVES
from simcoll.verifier.findings.finding import Finding, errors_of

_FAILED: Final = 5 * 10**9
"""For so long (ns) a rank must be seen not to come before a call that has ended without it counts as failed."""

_APART: Final = ("SC2", "SC3", "SC4", "SC7")
"""Codes of findings that say why ranks did not come to a call."""

_NEVER: Final = 1 << 62

_Mask: TypeAlias = npt.NDArray[np.bool_]
_Arrivals: TypeAlias = npt.NDArray[np.int64]
"""Ranks, the last collective to which each came, and until when its dump tells of it: one column a rank."""


@dataclass(slots=True)
class _Known:
    """The failed collectives by group, and the ranks that were in them.

    ``sits_in`` has the ranks whose last call had been open for long when their dump was written, and that call;
    ``stood`` one such rank for each of these calls.
    """

    arrivals: Mapping[Life, _Arrivals]
    sits_in: Mapping[int, tuple[Trace, Life, int]]
    stood: dict[Life, dict[int, Trace]] = field(default_factory=dict)
    held_up: set[int] = field(default_factory=set)
    broken: dict[Life, set[int]] = field(default_factory=dict)


def failed_calls(traces: Sequence[Trace], until: Mapping[int, int]) -> dict[int, _Mask]:
    """The rows of each rank's calls that have failed; ``until`` is the time (ns) up to which a record goes."""
    dumps = [trace for trace in traces if "state" in trace.unknown]
    known = _Known(_arrivals(dumps, until), _sitting(dumps, until))
    for trace, life, sequence in known.sits_in.values():
        known.stood.setdefault(life, {})[sequence] = trace
    failed = {trace.rank: np.zeros(len(trace.slots), np.bool_) for trace in traces}
    count, before = 0, -1
    # A call that failed shows that others have, too: repeated until nothing new is found.
    while count > before:
        failed |= {trace.rank: _failed(trace, until[trace.rank], known) for trace in dumps}
        for trace in dumps:
            _learn(trace, failed[trace.rank], known)
        count, before = sum(int(mask.sum()) for mask in failed.values()), count
    return failed


def as_recorded(traces: Sequence[Trace], recorded: Sequence[Trace], findings: Sequence[Finding]) -> list[Trace]:
    """The traces without the inferred failures that no finding confirms.

    A call's failure is inferred from the time at which a dump was written. The inference holds only where the cause is
    known too: a rank that wrote its dump slowly looks the same. ``recorded`` are the traces as the dumps have them.
    """
    errors = errors_of(findings)
    if any(finding.code.startswith(_APART) for finding in errors):
        return [*traces]
    places = {(finding.group.name, finding.sequence) for finding in errors if finding.group is not None}
    return [_as_recorded(trace, before, places) for trace, before in zip(traces, recorded, strict=True)]


def _as_recorded(trace: Trace, before: Trace, places: Collection[tuple[str, int | None]]) -> Trace:
    if trace is before:
        return trace
    slots = trace.slots
    worked_out = (slots["state"] == State.FAILED) & (before.slots["state"] != State.FAILED)
    for row in np.flatnonzero(worked_out).tolist():
        group = trace.groups[int(slots["group"][row])].name
        worked_out[row] = (group, int(slots["sequence"][row])) not in places
    if not worked_out.any():
        return trace
    slots = slots.copy()
    slots["state"][worked_out] = before.slots["state"][worked_out]
    return altered(trace, slots, trace.events)


def _arrivals(dumps: Sequence[Trace], until: Mapping[int, int]) -> dict[Life, _Arrivals]:
    found: dict[Life, list[tuple[int, int, int]]] = {}
    for trace in dumps:
        for life, sequence in reached(trace).items():
            if trace.rank in life[1]:
                found.setdefault(life, []).append((trace.rank, sequence, until[trace.rank]))
    return {life: np.array(members, np.int64).T for life, members in found.items()}


def _sitting(dumps: Sequence[Trace], until: Mapping[int, int]) -> dict[int, tuple[Trace, Life, int]]:
    found = {}
    for trace in dumps:
        last = trace.slots[-1:]
        for slot in last[(last["state"] < State.COMPLETED) & (last["p2p_sequence"] == 0)]:
            if until[trace.rank] - int(slot["scheduled_ns"]) >= _FAILED:
                found[trace.rank] = trace, lives(trace)[int(slot["group"])], int(slot["sequence"])
    return found


def _learn(trace: Trace, failed: _Mask, known: _Known) -> None:
    if not failed.any():
        return
    known.held_up.add(trace.rank)
    for index, life in enumerate(lives(trace)):
        mine = failed & (trace.slots["group"] == index)
        known.broken.setdefault(life, set()).update(trace.slots["sequence"][mine].tolist())


def _failed(trace: Trace, until: int, known: _Known) -> _Mask:
    """The calls of one rank that have ended without another that they needed.

    The other's dump shows that where it was written later than this one; an earlier dump does where the other was held
    up, or where this collective is known to have failed on another rank.
    """
    slots = trace.slots
    failed = np.zeros(len(slots), np.bool_)
    ended = np.flatnonzero((slots["p2p_sequence"] == 0) & (slots["state"] == State.COMPLETED))
    for index, life in enumerate(lives(trace)):
        mine = ended[slots["group"][ended] == index]
        broken = known.broken.get(life, set())
        for other, came, seen in _seen_to_miss(slots, mine, known.arrivals.get(life)):
            sure = seen >= until or other in known.held_up or _waits_for(trace, other, known)
            late = (slots["sequence"][mine] > came) & (seen - slots["scheduled_ns"][mine].astype(np.int64) >= _FAILED)
            for row in mine[late & ~failed[mine]].tolist():
                failed[row] = (sure or int(slots["sequence"][row]) in broken) and _needs(trace, life, row, other)
    if len(ended) and ended[-1] == len(slots) - 1:
        failed[-1] |= _left_others(trace, known)
    return failed


def _left_others(trace: Trace, known: _Known) -> bool:
    """True if a rank's last call has ended while another rank still sat in it, and each of them needs the other."""
    slot = trace.slots[-1]
    life = lives(trace)[int(slot["group"])]
    theirs = known.stood.get(life, {}).get(int(slot["sequence"]))
    if theirs is None:
        return False
    mine, others = len(trace.slots) - 1, len(theirs.slots) - 1
    return _needs(trace, life, mine, theirs.rank) and _needs(theirs, life, others, trace.rank)


def _seen_to_miss(slots: Slots, mine: npt.NDArray[np.intp], others: _Arrivals | None) -> list[tuple[int, int, int]]:
    """The arrivals of the ranks whose dumps go on long enough after the first of these calls that they lack."""
    if others is None or not len(mine):
        return []
    mine = mine[np.argsort(slots["sequence"][mine], kind="stable")]
    _, came, seen = others
    after = np.searchsorted(slots["sequence"][mine], came, "right")
    made = np.append(np.minimum.accumulate(slots["scheduled_ns"][mine].astype(np.int64)[::-1])[::-1], _NEVER)
    return [(int(rank), int(last), int(when)) for rank, last, when in others[:, seen - made[after] >= _FAILED].T]


def _waits_for(trace: Trace, other: int, known: _Known) -> bool:
    """True if another rank sat in a call to which this one, whose dump is the later one, has not come either."""
    if other not in known.sits_in:
        return False
    theirs, life, sequence = known.sits_in[other]
    member = trace.rank in life[1] and reached(trace).get(life, sequence) < sequence
    return member and _needs(theirs, life, len(theirs.slots) - 1, trace.rank)


def _needs(trace: Trace, life: Life, row: int, other: int) -> bool:
    call = trace.signatures[int(trace.slots["signature"][row])]
    spec, ranks = COLLECTIVES.get(call.op), life[1]
    return spec is not None and spec.needs(call, ranks.index(trace.rank), ranks.index(other))


_DUMPING_NS: Final = 120 * 10**9
"""The most that may lie between a dump and the abort that it announces: torch waits a minute by default."""

_TICK_NS: Final = 10**7
"""By so much a file may seem older than it is: it is dated by the kernel's last tick, of which there are 100 a second
or more.
"""


def when_it_was_ended(
    traces: Sequence[Trace], outcome: LaunchOutcome | None, stall: Stall | None
) -> tuple[Sequence[Trace], LaunchOutcome | None]:
    """Traces and outcome as of ``stall``'s end; unchanged where the job was not ended for it.

    Ranks are ended one after the other: the last ones still see their connections break, and fail, raise or exit for
    that. A rank that ended later than the stall counts as stopped.
    """
    if stall is None or not stall.over:
        until = None if outcome is None else _aborted_ns(traces, outcome)
        return traces if until is None else [_trace(trace, until) for trace in traces], outcome
    until = stall.seen_ns
    return [_trace(trace, until) for trace in traces], None if outcome is None else _outcome(outcome, until)


def _aborted_ns(traces: Sequence[Trace], outcome: LaunchOutcome) -> int | None:
    """The latest time of the first dump, in a job in which a rank was aborted after dumps were written; else None."""
    ends = [end.time_ns for end in outcome.ranks.values() if end.exit_code == -signal.SIGABRT and not end.stopped]
    dumps = [event.time_ns for trace in traces for event in trace.events if event.kind == DUMPED]
    if not ends or not dumps:
        return None
    last = [dump for dump in dumps if 0 <= min(ends) - dump <= _DUMPING_NS]
    return min(last) + _TICK_NS if last else None


def _trace(trace: Trace, until: int) -> Trace:
    slots = trace.slots
    later = slots["finished_ns"] > until
    events = [event for event in trace.events if event.time_ns <= until or event.kind == DUMPED]
    if not later.any() and len(events) == len(trace.events) and not (slots["scheduled_ns"] > until).any():
        return trace
    slots = slots.copy()
    slots["state"][later] = np.where(slots["started_ns"][later] > 0, State.STARTED, State.SCHEDULED)
    slots["finished_ns"][later] = 0
    return altered(trace, slots[slots["scheduled_ns"] <= until], events)


def _outcome(outcome: LaunchOutcome, until: int) -> LaunchOutcome:
    ranks = {
        rank: replace(end, stopped=True) if end.exit_code is not None and end.time_ns > until else end
        for rank, end in outcome.ranks.items()
    }
    return replace(outcome, ranks=ranks)
