"""Finds ranks that parted by an exception: one made its next call in a ``finally`` or a handler, the others did not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from simcoll.core.record import Event, number, source_of, text
from simcoll.core.trace import Trace
from simcoll.verifier.findings.finding import Finding, Parting, Side
from simcoll.verifier.program_text.parting import may_part

_NEAR = 8
"""Collectives after that of a finding within which a rank that did not make it makes its next call."""
_NO_CAUSES = frozenset({"CollectiveMismatchError", "MissingRankError", "StopIteration", "GeneratorExit"})


def with_partings_of_exceptions(findings: Sequence[Finding], traces: Sequence[Trace]) -> tuple[Finding, ...]:
    """The findings; those whose call one side did not make as it handled an exception say where that was raised."""
    events = {trace.rank: [event for event in trace.events if event.kind == "handling"] for trace in traces}
    if not any(events.values()):
        return tuple(findings)
    return tuple(_with_parting(one, events) if may_part(one) else one for one in findings)


def _with_parting(finding: Finding, events: Mapping[int, Sequence[Event]]) -> Finding:
    asked = [(rank, 0 if side.call is not None else _NEAR) for side in finding.sides for rank in side.ranks]
    found = ((rank, _handled(finding, events.get(rank, ()), near)) for rank, near in asked)
    raised = {rank: event for rank, event in found if event is not None}
    sides = [side for side in finding.sides if raised.keys() & set(side.ranks)]
    if len(sides) != 1 or raised.keys() != set(sides[0].ranks) or len(finding.sides) < 2:
        return finding
    [side], event = sides, raised[min(raised)]
    kind, others = text(event, "type"), tuple(rank for rank in finding.ranks if rank not in raised)
    did = (tuple(sorted(raised)), f"raised {kind} there"), (others, "did not")
    told = tuple(_told(one, event) if one is side else one for one in finding.sides)
    return replace(finding, sides=told, parted=Parting(source_of(event.data), did))


def _handled(finding: Finding, events: Sequence[Event], most: int) -> Event | None:
    """What a rank handled when it made its call of a finding, or one at ``most`` so many calls later."""
    for event in events:
        sequence = number(event, "sequence")
        if finding.group is None or finding.sequence is None or sequence is None or not source_of(event.data).file:
            continue
        near = 0 <= sequence - finding.sequence <= most
        if near and text(event, "group") == finding.group.name and text(event, "type") not in _NO_CAUSES:
            return event
    return None


def _told(side: Side, event: Event) -> Side:
    lines = text(event, "message").strip().splitlines()[:1]
    note = f"while {': '.join([text(event, 'type'), *lines])} was handled"
    return replace(side, note="; ".join(part for part in (side.note, note) if part))
