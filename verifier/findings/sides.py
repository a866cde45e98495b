"""Groups ranks by the value that they state, finds the majority, and makes the sides of a finding.

A call is compared only in what its record states: fields that the record leaves out are compared by nobody. A Flight
Recorder dump has no reduce op, root, splits, tag or device. What rests on such a field is left out of the statement,
and flows that rest on it are not computed. Two conclusions remain. The buffers of a rooted call may show which rank is
the root, since only the root has a part for every rank. And where splits are hidden, the ranks of a group still receive
as much as they send, all together.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from simcoll.core.ranges import ranks_text
from simcoll.core.record import Group, Record, Source
from simcoll.spec.call import Buffer, Call
from simcoll.spec.checksum import flow_word
from simcoll.spec.collectives import COLLECTIVES
from simcoll.spec.flows import Flows
from simcoll.spec.table import CollectiveSpec, Content, Rooted, Statement
from simcoll.verifier.findings.finding import CallPlace, Finding, RankSource, Rule, Severity, Side

_MASK = (1 << 64) - 1
_TOTAL_KEY = 0x9FB21C651E98DF25


def unknown_fields(ops: Collection[str], unknown: frozenset[str]) -> tuple[str, ...]:
    """The fields that ranks which make these calls must agree on, and that their records leave out."""
    specs = [COLLECTIVES[op] for op in ops if op in COLLECTIVES]
    return tuple(sorted(unknown & frozenset[str]().union(*(spec.agree | spec.law_reads for spec in specs))))


def known_statement(spec: CollectiveSpec, call: Call, group_rank: int, size: int, unknown: frozenset[str]) -> Statement:
    """The statement of a call without the fields that its record leaves out.

    A record that leaves fields out is the backend's own, made when it had accepted the call: its arguments are valid.
    """
    statement = spec.statement(call, group_rank, size)
    if not unknown:
        return statement
    return replace(
        statement,
        reduce_op=None if "reduce_op" in unknown else statement.reduce_op,
        root=None if "root" in unknown else statement.root,
        device=None if "device" in unknown else statement.device,
        form=None if "form" in unknown else statement.form,
        contents=tuple(_content(content, unknown) for content in statement.contents),
        valid=True,
    )


def _content(content: Content, unknown: frozenset[str]) -> Content:
    return Content(
        "" if "dtype" in unknown else content.dtype,
        None if "count" in unknown else content.count,
        None if "shape" in unknown else content.shape,
        None if "order" in unknown else content.order,
    )


def known_flows(
    spec: CollectiveSpec, call: Call, group_rank: int, size: int, unknown: frozenset[str], root: int | None
) -> Flows | None:
    """The flows of a call; None where counts say it all, and where a field that they rest on is not known.

    ``root`` is the group's, where the buffers of another rank have given it away.
    """
    hidden = spec.hidden(call, unknown)
    if not hidden:
        return spec.flows(call, group_rank, size)
    if root is None or hidden != {"root"}:
        return None
    return spec.flows(replace(call, root=root), group_rank, size)


def moved(call: Call) -> tuple[int, int]:
    """How many elements a call sends and receives in all."""
    return _elements(call.inputs), _elements(call.outputs)


def _elements(buffers: Collection[Buffer]) -> int:
    return sum(buffer.elements for buffer in buffers)


def flow_sum(spec: CollectiveSpec, call: Call, group_rank: int, size: int, unknown: frozenset[str]) -> tuple[int, bool]:
    """The part of a call's word that proves its flows as far as they are known, and whether its statement says all
    that can be said of it while a rank of the group is not there.

    The parts of a group add up to zero modulo 2^64 where the flows agree.
    """
    hidden = spec.hidden(call, unknown)
    if not hidden:
        flows = spec.flows(call, group_rank, size)
        return flow_word(flows, group_rank), flows is None
    if hidden == {"root"}:
        return _to_whoever_is_root(spec, call, group_rank, size), False
    sent, received = moved(call)
    return (sent - received) * _TOTAL_KEY & _MASK, True


def _to_whoever_is_root(spec: CollectiveSpec, call: Call, group_rank: int, size: int) -> int:
    """Flows between each rank and the root, which goes by a number of its own that every rank knows: ``size``."""
    own = spec.flows(replace(call, root=size), group_rank, size)
    mine = flow_word(own, group_rank)
    at_root = spec.flows(replace(call, root=group_rank), group_rank, size)
    if at_root is None or not spec.shows_root(call):
        return mine
    everybody = Flows({}, at_root.receives) if spec.rooted is Rooted.TO_ROOT else Flows(at_root.sends, {})
    return (mine + flow_word(everybody, size)) & _MASK


_SOURCES_PER_SIDE = 4
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
        """What this rank asked for."""
        return self.record.call

    def flows(self) -> Flows | None:
        """The flows of this call, built anew each time: those of thousands of ranks would not fit into memory."""
        if self.spec is None:
            return None
        return known_flows(self.spec, self.call, self.group_rank, self.size, self.unknown, self.root)

    def hides(self, field: str) -> bool:
        """Whether the flows of this call rest on a field that its record leaves out."""
        return self.spec is not None and field in self.spec.hidden(self.call, self.unknown)

    def fault(self) -> str | None:
        """What is wrong with this call by itself, or None; a backend that has recorded it had accepted it."""
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


def lines(stated: Iterable[tuple[int, Source]]) -> tuple[RankSource, ...]:
    """The distinct lines that ranks name, each with its first rank, as far as they are known; at most four."""
    found: dict[object, RankSource] = {}
    for rank, source in stated:
        if source.file and len(found) < _SOURCES_PER_SIDE:
            found.setdefault((source.file, source.line), RankSource(rank, source))
    return tuple(found.values())


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


def record_side(rank: int, group: Group, record: Record, note: str = "") -> Side:
    """The side of one rank (global) at one of its calls."""
    return Side((rank,), record.call, lines([(rank, record.source)]), note, CallPlace.of(group, record, rank))


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
