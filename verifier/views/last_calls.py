"""The last calls of each rank, and more of the calls before a finding than the report has.

Ranks that made the same last calls share one :class:`~simcoll.verifier.findings.finding.History`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from simcoll.core.record import Group, Record
from simcoll.core.trace import Trace, record_at
from simcoll.verifier.findings.finding import Finding, History
from simcoll.verifier.views.selection import Selection
from simcoll.verifier.views.summary import kind_of

_Calls: TypeAlias = tuple[tuple[Record, Group], ...]


def histories_of(
    traces: Sequence[Trace], count: int, selection: Selection, ranks: Collection[int]
) -> tuple[History, ...]:
    """The last ``count`` calls of each of these ranks on the selected groups; equal ones together."""
    crowds: dict[object, list[tuple[int, _Calls]]] = {}
    for trace in traces:
        if trace.rank in ranks:
            calls = _last(trace, count, selection)
            crowds.setdefault(tuple(_key(*call) for call in calls), []).append((trace.rank, calls))
    return tuple(_history([rank for rank, _ in crowd], crowd[0][1]) for crowd in crowds.values())


def _history(ranks: Sequence[int], calls: _Calls) -> History:
    return History(tuple(ranks), tuple(record for record, _ in calls), tuple(group for _, group in calls))


def with_before(finding: Finding, traces: Sequence[Trace], count: int) -> Finding:
    """A finding with the last ``count`` collectives of its group before it, as one of its ranks wrote them down."""
    if finding.group is None or len(finding.before) >= count:
        return replace(finding, before=finding.before[-count:])
    until = finding.before[-1].sequence if finding.before else (finding.sequence or 1) - 1
    majority = [rank for rank in finding.ranks if rank not in finding.culprits]
    by_rank = {trace.rank: trace for trace in traces}
    witness = next((rank for rank in (*majority, *finding.ranks) if rank in by_rank), None)
    if witness is None:
        return finding
    trace = by_rank[witness]
    mine = [index for index, group in enumerate(trace.groups) if group == finding.group]
    slots = trace.slots
    earlier = np.isin(slots["group"], mine) & (slots["p2p_sequence"] == 0) & (slots["sequence"] <= until)
    rows = np.flatnonzero(earlier)
    rows = rows[np.argsort(slots["sequence"][rows], kind="stable")][-count:]
    before = tuple(record for row in rows if (record := record_at(trace, int(row))) is not None)
    return replace(finding, before=before) if len(before) > len(finding.before) else finding


def _last(trace: Trace, count: int, selection: Selection) -> _Calls:
    slots = trace.slots
    rows = np.arange(len(slots))
    if selection.groups:
        shown = [index for index, group in enumerate(trace.groups) if selection.has_group(group)]
        rows = np.flatnonzero(np.isin(slots["group"], shown))
    found = ((record_at(trace, int(row)), int(slots[row]["group"])) for row in rows[-count:])
    return tuple((record, trace.groups[index]) for record, index in found if record is not None)


def _key(record: Record, group: Group) -> object:
    """A key that is equal where ranks did the same, each at its own time, in groups of one kind."""
    number = record.sequence, record.p2p_sequence
    return kind_of(group), number, record.call.op, record.state, record.source.file, record.source.line
