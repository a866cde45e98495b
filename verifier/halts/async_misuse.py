"""SC501 to SC503: asynchronous calls that nobody waited for, and memory that was used while they were in flight.

SC503 and SC601 also where the tensors of one call lie in memory such that its backend gives wrong results.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from simcoll.core.ranges import ranks_text
from simcoll.core.record import Event, Group, Source, State, number, source_of, text
from simcoll.core.trace import ASYNCHRONOUS, AWAITED, HANDED_ON, Slots, Trace, once_alike, slots_key
from simcoll.spec.call import Call
from simcoll.spec.collectives import COLLECTIVES
from simcoll.verifier.agreement.distinct import distinct_rows
from simcoll.verifier.agreement.mismatches import Mismatch
from simcoll.verifier.agreement.own_memory import DIFFERING, memory_text
from simcoll.verifier.agreement.p2p_matching import Unmatched
from simcoll.verifier.findings.describe import call_text, source_text
from simcoll.verifier.findings.finding import Finding, RankSource, Rule, Severity, Side
from simcoll.verifier.findings.rules import BUFFER_CHANGED, BUFFERS_OVERLAP, INVALID_ARGUMENT, WORK_NEVER_WAITED
from simcoll.verifier.program_text.results import read_before_wait, reads_between

_SIDES = 8
_SAME = ("group", "signature", "source")
"""The columns that decide whether a call brings a result."""

Rows = npt.NDArray[np.intp]
"""Rows of a trace's ``slots``."""


@dataclass(slots=True)
class _Case:
    """The occurrences at one place of the program: their ranks, their number, the time of the first."""

    sides: dict[int, tuple[Source, ...]] = field(default_factory=dict)
    group: Group | None = None
    sequence: int | None = None
    call: Call | None = None
    count: int = 0
    time_ns: int = 0
    grave: bool = False
    beyond: bool = False
    event: Event | None = None


def never_waited(traces: Sequence[Trace], unmatched: Sequence[Unmatched] = ()) -> list[Finding]:
    """SC501 for each line of a job that ended well whose calls brought a result for which nobody waited.

    An ``unmatched`` receive brought none: it was left open on purpose.
    """
    cases: dict[tuple[str, int, str], _Case] = {}
    alone: dict[int, set[tuple[Group, int]]] = {}
    for one in unmatched:
        alone.setdefault(one.rank, set()).add((one.group, one.record.p2p_sequence))
    returned = dict(zip(map(id, traces), once_alike(traces, _returned, slots_key), strict=True))
    unobserved = once_alike(traces, lambda trace: _unobserved(trace, *returned[id(trace)]))
    for trace, left in zip(traces, unobserved, strict=True):
        if not len(left[0]):
            continue
        rows = _left(trace, *left)
        if trace.rank in alone:
            rows = np.array([row for row in rows if not _is_alone(trace, row, alone[trace.rank])], np.intp)
        for row, often in _distinct(trace.slots, rows, ("signature", "source")):
            _add(cases, trace, row, often)
    return [_never_waited(case, traces) for case in cases.values()]


def read_early(traces: Sequence[Trace]) -> list[Finding]:
    """SC501 for each line whose function, by the program's text, reads the result of a call before it waits for it."""
    cases: dict[tuple[str, int, str], _Case] = {}
    for trace, observed in zip(traces, once_alike(traces, _observed, slots_key), strict=True):
        for row, often in observed:
            reading = (
                read_before_wait(trace.sources[trace.slots["source"][row]]) if _brings_result(trace, row) else None
            )
            if reading is not None:
                _add(cases, trace, row, often, reading)
    return [_read_early(case, traces) for case in cases.values()]


def _observed(trace: Trace) -> list[tuple[int, int]]:
    """The first of the calls of each kind that returned before their end, which somebody has seen, and their number."""
    slots, rows = trace.slots, _returned(trace)[1]
    rows = rows[(slots["flags"][rows] & ASYNCHRONOUS != 0) | (slots["p2p_sequence"][rows] > 0)]
    return _distinct(slots, rows, _SAME)


def _add(cases: dict[tuple[str, int, str], _Case], trace: Trace, row: int, often: int, *others: Source) -> None:
    """Add so many calls of a row's line and kind to their case, with ``others``, the further lines that it is about."""
    slot = trace.slots[row]
    call, source = trace.signatures[slot["signature"]], trace.sources[slot["source"]]
    case = cases.setdefault((source.file, source.line, call.op), _Case(call=call))
    case.count += often
    case.sides.setdefault(trace.rank, (source, *others))
    if case.group is None:
        case.group = trace.groups[slot["group"]]
        case.sequence = None if slot["p2p_sequence"] else int(slot["sequence"])


def _read_early(case: _Case, traces: Sequence[Trace]) -> Finding:
    call = "a call" if case.call is None else call_text(case.call, case.group)
    message = f"the result of {call} was read before anybody had waited for it on {ranks_text(sorted(case.sides))}"
    return _finding(WORK_NEVER_WAITED, Severity.WARNING, message, case, traces)


def _is_alone(trace: Trace, row: int, alone: Collection[tuple[Group, int]]) -> bool:
    slot = trace.slots[row]
    return bool(slot["p2p_sequence"]) and (trace.groups[slot["group"]], int(slot["p2p_sequence"])) in alone


def _unobserved(trace: Trace, rows: Rows, observed: Rows) -> tuple[Rows, Rows]:
    """The rows of calls whose end nobody has seen or can see, and of asynchronous ones whose end somebody has."""
    return rows[~_ended_by_next(trace, rows)] if len(rows) else rows, observed


def _returned(trace: Trace) -> tuple[Rows, Rows]:
    """The rows of calls that returned before their end: those whose end nobody has seen, and those of the others."""
    slots, flags = trace.slots, trace.slots["flags"]
    returns = (flags & ASYNCHRONOUS != 0) | (slots["p2p_sequence"] > 0)
    observed = flags & (AWAITED | HANDED_ON) != 0
    rows = np.flatnonzero(returns & ~observed)
    rows = rows[np.isin(slots["state"][rows], (State.STARTED, State.COMPLETED))] if len(rows) else rows
    return rows, np.flatnonzero(returns & observed)


def _ended_by_next(trace: Trace, rows: Rows) -> npt.NDArray[np.bool_]:
    """True for collectives of a function whose next call in the group that is waited for ends all before it.

    Where the function reads the result before that call, it does not wait for it so.
    """
    slots = trace.slots
    specs = [COLLECTIVES.get(call.op) for call in trace.signatures]
    ends = np.array([spec is not None and spec.ends_earlier for spec in specs] + [False])
    found = np.zeros(len(rows), np.bool_)
    if not ends.any():
        return found
    functions = _functions(trace)
    waited = (slots["flags"] & ASYNCHRONOUS == 0) | (slots["flags"] & AWAITED != 0)
    waited &= (slots["p2p_sequence"] == 0) & (slots["state"] == State.COMPLETED)
    for group in np.unique(slots["group"][rows]).tolist():
        after = np.flatnonzero(waited & (slots["group"] == group))
        mine = np.flatnonzero((slots["group"][rows] == group) & (slots["p2p_sequence"][rows] == 0))
        place = np.searchsorted(after, rows[mine])
        mine, following = mine[place < len(after)], after[place[place < len(after)]]
        ending = ends[np.minimum(slots["signature"][following], len(specs))]
        ending &= functions[rows[mine]] == functions[following]
        mine, following = mine[ending], following[ending]
        found[mine] = ~_read_before(trace, rows[mine], following)
    return found


def _read_before(trace: Trace, rows: Rows, following: Rows) -> npt.NDArray[np.bool_]:
    """True for calls (at ``rows``) whose result their function reads before it makes the ``following`` one."""
    lines = list(zip(trace.slots["source"][rows].tolist(), trace.slots["source"][following].tolist(), strict=True))
    known = {
        pair: max(pair) < len(trace.sources) and reads_between(trace.sources[pair[0]], trace.sources[pair[1]])
        for pair in set(lines)
    }
    return np.array([known[pair] for pair in lines], np.bool_)


def _functions(trace: Trace) -> npt.NDArray[np.int64]:
    """A number for the function of each row's line, equal where it is one function."""
    numbers: dict[tuple[str, str], int] = {}
    of = [numbers.setdefault((source.file, source.function), len(numbers)) for source in trace.sources]
    found: npt.NDArray[np.int64] = np.array([*of, -1])[np.minimum(trace.slots["source"], len(of))]
    return found


def _left(trace: Trace, unobserved: Rows, observed: Rows) -> Rows:
    """The rows of calls whose result nobody waited for, without those at the end of a line that waits."""
    rows = _with_result(trace, unobserved)
    return rows[~_at_the_end(trace, observed, rows)] if len(rows) else rows


def _with_result(trace: Trace, rows: Rows) -> Rows:
    """Those of the rows whose calls bring a result; each distinct call of a group and a line is looked at once."""
    if not len(rows):
        return rows
    first, _, kind = distinct_rows([trace.slots[name][rows] for name in _SAME])
    brings = np.array([_brings_result(trace, int(row)) for row in rows[first]], np.bool_)
    kept: Rows = rows[brings[kind]]
    return kept


def _distinct(slots: Slots, rows: Rows, columns: Sequence[str]) -> list[tuple[int, int]]:
    """The first row of each distinct combination of these columns, in order, and the number of its rows."""
    if not len(rows):
        return []
    first, often, _ = distinct_rows([slots[name][rows] for name in columns])
    return sorted(zip(rows[first].tolist(), often.tolist(), strict=True))


def _brings_result(trace: Trace, row: int) -> bool:
    slot = trace.slots[row]
    group, signature, source = int(slot["group"]), int(slot["signature"]), int(slot["source"])
    if group >= len(trace.groups) or signature >= len(trace.signatures) or source >= len(trace.sources):
        return False
    members, call = trace.groups[group], trace.signatures[signature]
    place, spec = members.place(trace.rank), COLLECTIVES.get(call.op)
    known = bool(trace.sources[source].file) and place is not None
    return known and len(members.ranks) > 1 and spec is not None and spec.brings_result(call, place or 0)


def _at_the_end(trace: Trace, waited: Rows, rows: Rows) -> npt.NDArray[np.bool_]:
    """True for rows after the last call of their line that was waited for: a line that prefetches ends so."""
    numbers: dict[tuple[str, int], int] = {}
    line_of = [numbers.setdefault((source.file, source.line), len(numbers)) for source in trace.sources]
    sources = trace.slots["source"][np.concatenate([waited, rows])]
    lines, place = np.unique(np.array([*line_of, -1])[np.minimum(sources, len(line_of))], return_inverse=True)
    last = np.full(len(lines), -1, np.intp)
    np.maximum.at(last, place[: len(waited)], waited)
    there: npt.NDArray[np.bool_] = last[place[len(waited) :]] >= 0
    return there & (last[place[len(waited) :]] < rows)


def _never_waited(case: _Case, traces: Sequence[Trace]) -> Finding:
    call = "a call" if case.call is None else call_text(case.call, case.group)
    ranks = sorted(case.sides)
    often = "" if case.count == len(ranks) else f" ({case.count} calls in all)"
    message = f"nobody waited for the work of {call} on {ranks_text(ranks)}{often}"
    return _finding(WORK_NEVER_WAITED, Severity.WARNING, message, case, traces)


def memory_findings(traces: Sequence[Trace]) -> list[Mismatch]:
    """SC502, SC503 and SC601, one for each pair of lines, errors and warnings, in order of time."""
    cases: dict[tuple[object, ...], _Case] = {}
    for trace in traces:
        overlapped = {place for event in trace.events if event.kind == "overlap" and (place := _overlapped(event))}
        for event in trace.events:
            # A call whose memory a later one uses is written to by that one: no second finding.
            if event.kind == "changed" and (text(event, "group"), number(event, "sequence")) in overlapped:
                continue
            if event.kind in ("changed", "overlap", "unsound"):
                _note(cases, trace, event)
    found = [
        Mismatch(_judge(kind, case, traces), case.time_ns, lasting=case.beyond) for (kind, *_), case in cases.items()
    ]
    return sorted(found, key=lambda mismatch: mismatch.time_ns)


def _overlapped(event: Event) -> tuple[object, object] | None:
    """The group and the number of the earlier of two calls that use the same memory."""
    other = event.data.get("other")
    if not isinstance(other, dict):
        return None
    group, sequence = other.get("group"), other.get("sequence")
    return (group, sequence) if isinstance(group, str) and isinstance(sequence, int) else None


def _note(cases: dict[tuple[object, ...], _Case], trace: Trace, event: Event) -> None:
    sources = tuple(_places(event))
    # The second line of a write is only the one at which the program then waited.
    lines = sources if event.kind == "overlap" else sources[:1]
    key = (event.kind, text(event, "rule"), *((source.file, source.line) for source in lines))
    case = cases.setdefault(key, _Case(time_ns=event.time_ns, event=event))
    case.time_ns = min(case.time_ns, event.time_ns)
    case.sides.setdefault(trace.rank, sources)
    case.grave |= _is_grave(event)
    case.beyond |= event.data.get("beyond") is True
    case.group = case.group or next((one for one in trace.groups if one.name == text(event, "group")), None)
    case.sequence = case.sequence if case.sequence is not None else number(event, "sequence")


def _places(event: Event) -> Iterable[Source]:
    yield source_of(event.data)
    other = event.data.get("other")
    if isinstance(other, dict):
        yield source_of(other)
    elif event.data.get("noticed") is not None:
        yield source_of({"source": event.data["noticed"]})


def _is_grave(event: Event) -> bool:
    if event.kind == "changed":
        return event.data.get("known") is True
    return event.data.get("both_write") is True and event.data.get("running") is True


def _judge(kind: object, case: _Case, traces: Sequence[Trace]) -> Finding:
    event = case.event
    assert event is not None
    ranks, op = ranks_text(case.sides), text(event, "op") or "a call"
    if kind == "unsound":
        rule = BUFFERS_OVERLAP if text(event, "rule") == BUFFERS_OVERLAP.code else INVALID_ARGUMENT
        found = _finding(rule, Severity.ERROR, memory_text(op, ranks, text(event, "reason")), case, traces)
        # In detail mode all ranks of the group raise.
        raise_all = any(trace.mode == "detail" for trace in traces)
        everybody = case.group.ranks if case.group is not None and raise_all else found.ranks
        return replace(found, differing=DIFFERING, ranks=tuple(sorted(everybody)))
    severity = Severity.ERROR if case.grave else Severity.WARNING
    if kind == "changed":
        when = "before its data had left" if case.grave else "before anybody had waited for it"
        message = f"the buffer of an asynchronous {op} was written to {when} on {ranks}"
        return _finding(BUFFER_CHANGED, severity, message, case, traces)
    other = event.data.get("other")
    first = other if isinstance(other, dict) else {}
    use = "both write to" if event.data.get("both_write") is True else "one of them writes to"
    message = (
        f"{op} uses memory of an asynchronous {first.get('op')} that was still in flight, and {use} it, on {ranks}"
        f"{'' if source_of(first) == source_of(event.data) else f' ({source_text(source_of(first))})'}"
    )
    return _finding(BUFFERS_OVERLAP, severity, message, case, traces)


def _finding(rule: Rule, severity: Severity, message: str, case: _Case, traces: Sequence[Trace]) -> Finding:
    ranks = tuple(sorted(case.sides))
    everyone = case.group is not None and set(case.group.ranks) <= set(ranks) and len(ranks) > 1
    return rule.finding(
        message,
        severity=severity,
        group=case.group,
        sequence=case.sequence,
        ranks=ranks,
        culprits=() if everyone or len(traces) == 1 else ranks,
        sides=tuple(_sides(case)),
    )


def _sides(case: _Case) -> list[Side]:
    """Ranks at the same lines together."""
    together: dict[tuple[tuple[str, int], ...], list[int]] = {}
    for rank, sources in sorted(case.sides.items()):
        together.setdefault(tuple((source.file, source.line) for source in sources), []).append(rank)
    return [
        Side(
            tuple(ranks),
            case.call,
            tuple(RankSource(ranks[0], source) for source in dict.fromkeys(case.sides[ranks[0]]) if source.file),
        )
        for ranks in list(together.values())[:_SIDES]
    ]
