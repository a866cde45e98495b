"""The statements of ranks: ranks parted by a field's value, the majority among them, the findings on their parts."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from simcoll.core.ranges import ranks_text
from simcoll.core.record import Group, Record
from simcoll.spec.call import Call
from simcoll.spec.flows import Flows
from simcoll.spec.table import CollectiveSpec, Content, Statement
from simcoll.verifier.agreement.known_fields import known_flows
from simcoll.verifier.findings.finding import Finding, Rule, Severity, Side, lines

_SIDES_IN_TEXT = 4


@dataclass(frozen=True, slots=True)
class Voice:
    """One rank's call, read through its row of the spec. ``spec`` is None for an op that the table does not have.

    ``unknown`` are the fields that some rank's record leaves out; ``root`` is the group's, where buffers give it away.
    """

    group_rank: int
    rank: int
    size: int
    record: Record
    spec: CollectiveSpec | None
    statement: Statement | None
    unknown: frozenset[str] = frozenset()
    root: int | None = None

    @property
    def call(self) -> Call:
        """The call of this rank."""
        return self.record.call

    @property
    def contents(self) -> tuple[Content, ...]:
        """The contents of its buffers as far as they are known, none for an op that the table does not have."""
        return () if self.statement is None else self.statement.contents

    def flows(self) -> Flows | None:
        """The flows of this call, built anew each time: those of thousands of ranks would not fit into memory."""
        if self.spec is None:
            return None
        return known_flows(self.spec, self.call, self.group_rank, self.size, self.unknown, self.root)

    def hides(self, field: str) -> bool:
        """True if the flows of this call rest on a field that its record leaves out."""
        return self.spec is not None and field in self.spec.hidden(self.call, self.unknown)

    def fault(self) -> str | None:
        """The fault of this call by itself, or None; a backend that has recorded it had accepted it."""
        if self.spec is None or self.unknown:
            return None
        return self.spec.fault(self.call, self.group_rank, self.size)


Parts: TypeAlias = dict[Hashable, list[Voice]]
"""Voices by the value that they state, most voices first; ties stay in rank order."""


def part(voices: Sequence[Voice], value: Callable[[Voice], Hashable | None]) -> Parts:
    """Part voices by a value; those whose value is None (it is not known) stand aside."""
    parts: Parts = {}
    for voice in voices:
        stated = value(voice)
        if stated is not None:
            parts.setdefault(stated, []).append(voice)
    return dict(sorted(parts.items(), key=lambda item: -len(item[1])))


def outvoted(parts: Parts) -> tuple[int, ...]:
    """The ranks against whom a strict majority of the voices stands; empty where no value has one."""
    groups = list(parts.values())
    total = sum(map(len, groups))
    if len(groups) < 2 or 2 * len(groups[0]) <= total:
        return ()
    return tuple(sorted(voice.rank for members in groups[1:] for voice in members))


def side(members: Sequence[Voice], note: str = "") -> Side:
    """A side of a report: its ranks, the first one's call, and the distinct lines from which they made it."""
    ranks = tuple(sorted(voice.rank for voice in members))
    return Side(ranks, members[0].call, lines((voice.rank, voice.record.source) for voice in members), note)


def each(parts: Parts, say: Callable[[Hashable, str, bool], str]) -> str:
    """One clause a part, the outvoted first: ``say`` is given the value, the ranks in words, and if it is one rank."""
    order = list(parts.items())
    if outvoted(parts):
        order = [*order[1:], order[0]]
    clauses = [
        say(value, ranks_text(voice.rank for voice in members), len(members) == 1)
        for value, members in order[:_SIDES_IN_TEXT]
    ]
    if len(order) > _SIDES_IN_TEXT:
        clauses.append(f"and {len(order) - _SIDES_IN_TEXT} more differ")
    return ", ".join(clauses)


def finding(
    rule: Rule,
    group: Group,
    parts: Parts,
    message: str,
    *,
    differing: Iterable[str],
    severity: Severity | None = None,
    culprits: tuple[int, ...] | None = None,
) -> Finding:
    """A finding whose sides are the parts, the largest first."""
    members = [voice for voices in parts.values() for voice in voices]
    return rule.finding(
        message,
        severity=severity,
        group=group,
        sequence=min(voice.record.sequence for voice in members),
        ranks=(voice.rank for voice in members),
        culprits=outvoted(parts) if culprits is None else culprits,
        sides=tuple(side(voices) for voices in parts.values()),
        differing=tuple(differing),
    )
