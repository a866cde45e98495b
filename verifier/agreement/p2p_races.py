"""SC305: receives from any source that may as well have taken the message for which a later receive waits.

A message races for a receive from any source if its sender need not know, when it sends it, that the receive has taken
another one. It does harm where the receive that took it in this run names its sender, who then has nothing more to
send, or where the two messages do not fit each other's receives. Whether a message may come earlier follows from the
order that the records impose, in which every collective and every message counts as a meeting of its ranks; so some
races are missed, and none is made up. A later receive counts only if its source does not depend on what came: that is
read in the program's text, which is not executed.

Where the other message did come first, the later receive waits in vain: the error on it names the receive that took its
message.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np

from simcoll.core.record import Group, Record, Source, State
from simcoll.core.trace import Life, Trace, lives, record_at
from simcoll.spec.call import ANY_SOURCE, Call
from simcoll.verifier.agreement.p2p_mismatches import disagreement
from simcoll.verifier.findings.describe import source_text
from simcoll.verifier.findings.finding import Finding, Severity, record_side
from simcoll.verifier.findings.rules import DEADLOCK_CYCLE, MESSAGE_RACE, P2P_UNMATCHED
from simcoll.verifier.program_text.syntax import Function, name_of, steps_to, text_of

_ANY = "recv_anysource"
_WAITS = (DEADLOCK_CYCLE.code, P2P_UNMATCHED.code)
_RECEIVES = ("recv", "irecv")
_FIXED = frozenset({"rank", "world_size", "local_rank", "size", "group"})
"""Parameters that a program sets once for each rank."""
_HARMLESS = frozenset({"get_rank", "get_world_size", "int", "len", "range", "min", "max"})
_PUTTING = frozenset({"add", "append", "discard", "extend", "insert", "pop", "remove", "setdefault", "update"})
"""Methods that make a container depend on their arguments: ``seen.append(source)``."""
_MOST = 256
"""So many receives from any source of one line are looked at; further ones are like them."""

_Channel: TypeAlias = tuple[Life, int, int, int]
"""Messages of one tag: the group, the sender and the receiver (global ranks), the tag."""


@dataclass(frozen=True, slots=True)
class _Call:
    """A send or a receive: its rank, its row in the rank's trace, and the group."""

    rank: int
    row: int
    group: Group
    record: Record


@dataclass(slots=True)
class _Messages:
    """The sends of each channel in order, and the receives of each rank in order, each with its channel."""

    sends: dict[_Channel, list[_Call]] = field(default_factory=lambda: defaultdict(list))
    receives: dict[int, list[tuple[_Channel, _Call]]] = field(default_factory=lambda: defaultdict(list))


def racing_receives(traces: Sequence[Trace]) -> list[Finding]:
    """A warning for each pair of lines that race; none where the records of a rank are missing or incomplete."""
    tables = {id(trace.signatures): trace.signatures for trace in traces}
    if not any(call.spelling == _ANY for table in tables.values() for call in table):
        return []
    whole = not any(trace.dropped or trace.dropped_p2p or trace.unknown for trace in traces)
    if not whole or len(traces) != max(trace.world_size for trace in traces):
        return []
    messages = _messages_of(traces)
    order = _Order.of(traces, messages)
    found: dict[object, Finding] = {}
    for rank, receives in messages.receives.items():
        for key, finding in _races_of(rank, receives, messages, order):
            found.setdefault(key, finding)
    return list(found.values())


def _messages_of(traces: Sequence[Trace]) -> _Messages:
    messages = _Messages()
    for trace in traces:
        slots, known = trace.slots, lives(trace)
        rows = np.flatnonzero((slots["p2p_sequence"] > 0) & (slots["state"] == State.COMPLETED))
        for row in rows.tolist():
            record = record_at(trace, row)
            group = trace.groups[int(slots[row]["group"])] if record is not None else None
            if record is None or group is None or record.call.op not in ("send", "recv"):
                continue
            peer = record.call.peer
            if peer is None or peer == ANY_SOURCE or not 0 <= peer < len(group.ranks):
                continue
            other, one = group.ranks[peer], _Call(trace.rank, row, group, record)
            life, tag = known[int(slots[row]["group"])], record.call.tag or 0
            if record.call.op == "send":
                messages.sends[life, trace.rank, other, tag].append(one)
            else:
                messages.receives[trace.rank].append(((life, other, trace.rank, tag), one))
    return messages


def _races_of(
    rank: int, receives: Sequence[tuple[_Channel, _Call]], messages: _Messages, order: _Order
) -> Iterator[tuple[object, Finding]]:
    """The races for one rank's receives from any source."""
    taken: dict[_Channel, int] = defaultdict(int)
    takers: dict[_Channel, list[_Call]] = defaultdict(list)
    for channel, one in receives:
        takers[channel].append(one)
    looked: dict[Source, int] = defaultdict(int)
    for channel, one in receives:
        looked[one.record.source] += one.record.call.spelling == _ANY
        if one.record.call.spelling == _ANY and looked[one.record.source] <= _MOST:
            life, sender, _, tag = channel
            place = taken[channel]
            own = messages.sends[channel][place] if place < len(messages.sends[channel]) else None
            for other in (rank_ for rank_ in one.group.ranks if rank_ not in (sender, rank)):
                rival = (life, other, rank, tag)
                behind = taken[rival]
                if own is None or behind >= min(len(messages.sends.get(rival, ())), len(takers.get(rival, ()))):
                    continue
                sent, taker = messages.sends[rival][behind], takers[rival][behind]
                if _harms(one, own, sent, taker) and not order.after(one, sent):
                    yield (one.record.source, taker.record.source), _finding(one, own, sent, taker)
        taken[channel] += 1


def with_takers(findings: Sequence[Finding], traces: Sequence[Trace]) -> tuple[Finding, ...]:
    """The findings; an error on a receive whose message one from any source has taken names that one."""
    by_rank = {trace.rank: trace for trace in traces}
    waits = [one.severity is Severity.ERROR and one.code in _WAITS for one in findings]
    return tuple(_with_taker(one, by_rank) if wait else one for one, wait in zip(findings, waits, strict=True))


def _with_taker(finding: Finding, traces: Mapping[int, Trace]) -> Finding:
    for side in finding.sides:
        trace = traces.get(side.ranks[0]) if side.ranks else None
        if trace is None or side.call is None or side.call.op != "recv" or side.call.peer in (None, ANY_SOURCE):
            continue
        taken = _last_taken(trace, side.call, traces)
        if taken is not None:
            sender, source = taken
            told = (
                f"a receive of rank {trace.rank} from any source, at {source_text(source)}, had taken the last message"
            )
            return replace(finding, message=f"{finding.message}; {told} of rank {sender}")
    return finding


def _last_taken(trace: Trace, call: Call, traces: Mapping[int, Trace]) -> tuple[int, Source] | None:
    """The sender for which a rank's open receive waits, and the line whose receive from any source took its last one.

    None where a receive that names the sender took it, or where it has sent more.
    """
    slots = trace.slots
    if trace.dropped_p2p:
        return None
    same = [number for number, known in enumerate(trace.signatures) if known == call]
    rows = np.flatnonzero((slots["state"] != State.COMPLETED) & np.isin(slots["signature"], same))
    group = trace.groups[int(slots["group"][rows[-1]])] if len(rows) else None
    place = None if group is None else group.place(trace.rank)
    if group is None or place is None or call.peer is None or not 0 <= call.peer < len(group.ranks):
        return None
    sender = traces.get(group.ranks[call.peer])
    taken = _messages(trace, group, "recv", call.peer, call.tag)
    done = [record for record in taken if record.state is State.COMPLETED]
    sent = 0 if sender is None else len(_messages(sender, group, "send", place, call.tag))
    if not done or sent != len(done) or done[-1].call.spelling != _ANY or sender is None or sender.dropped_p2p:
        return None
    return sender.rank, done[-1].source


def _messages(trace: Trace, group: Group, op: str, peer: int, tag: int | None) -> list[Record]:
    """A rank's sends or receives of a group, to or from one group rank, with one tag."""
    slots = trace.slots
    groups = [number for number, one in enumerate(trace.groups) if (one.name, one.ranks) == (group.name, group.ranks)]
    rows = np.flatnonzero((slots["p2p_sequence"] > 0) & np.isin(slots["group"], groups))
    records = [record for row in rows.tolist() if (record := record_at(trace, row)) is not None]
    return [one for one in records if (one.call.op, one.call.peer, one.call.tag or 0) == (op, peer, tag or 0)]


def _harms(one: _Call, own: _Call, sent: _Call, taker: _Call) -> bool:
    """True if the program fails, or takes a wrong message, where ``one`` takes ``sent`` in place of ``own``."""
    if taker.record.call.spelling == _ANY:
        return _differ(sent, one) or _differ(own, taker)
    return _is_fixed(taker.record.source, one.record.source)


def _differ(send: _Call, receive: _Call) -> bool:
    return disagreement(send.record.call, receive.record.call, send.rank, receive.rank) is not None


def _finding(one: _Call, own: _Call, sent: _Call, taker: _Call) -> Finding:
    named = taker.record.call.spelling != _ANY
    then = (
        f"its later receive from rank {sent.rank} then waits for a message that is not sent"
        if named
        else "the messages then do not fit their receives"
    )
    message = (
        f"rank {one.rank} took a message from rank {own.rank} with a receive from any source, and the one from rank "
        f"{sent.rank} may come first: {then}"
    )
    notes = (f"took the message from rank {own.rank}", f"took the message from rank {sent.rank}", "sends it")
    sides = [
        record_side(call.rank, call.group, call.record, note)
        for call, note in zip((one, taker, sent), notes, strict=True)
    ]
    return MESSAGE_RACE.finding(message, group=one.group, ranks={one.rank, own.rank, sent.rank}, sides=sides)


@dataclass(frozen=True, slots=True)
class _Order:
    """The order that meetings of ranks impose on their calls: for each rank, its meetings by row."""

    meetings: Sequence[Mapping[int, int]]
    """Each meeting: the rows of its ranks."""
    of_rank: Mapping[int, Sequence[tuple[int, int]]]
    """Rows and numbers of a rank's meetings, in order of rows."""

    @classmethod
    def of(cls, traces: Sequence[Trace], messages: _Messages) -> _Order:
        """The meetings in all collectives and messages of these traces."""
        collectives: dict[object, dict[int, int]] = defaultdict(dict)
        for trace in traces:
            slots, known = trace.slots, lives(trace)
            for row in np.flatnonzero(slots["p2p_sequence"] == 0).tolist():
                life = known[int(slots[row]["group"])]
                collectives[life, int(slots[row]["sequence"])][trace.rank] = row
        meetings = [one for one in collectives.values() if len(one) > 1]
        taken: dict[_Channel, int] = defaultdict(int)
        for rank, receives in messages.receives.items():
            for channel, one in receives:
                sends = messages.sends.get(channel, ())
                if taken[channel] < len(sends):
                    send = sends[taken[channel]]
                    meetings.append({rank: one.row, send.rank: send.row})
                taken[channel] += 1
        of_rank: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for number, meeting in enumerate(meetings):
            for rank, row in meeting.items():
                of_rank[rank].append((row, number))
        return cls(meetings, {rank: sorted(found) for rank, found in of_rank.items()})

    def after(self, one: _Call, other: _Call) -> bool:
        """True if ``other`` may only be made after ``one`` was: a chain of meetings leads from it to there."""
        reached = {one.rank: one.row}
        waiting = [one.rank]
        met: set[int] = set()
        while waiting:
            rank = waiting.pop()
            for row, number in self.of_rank.get(rank, ()):
                if row < reached[rank] or number in met:
                    continue
                met.add(number)
                for member, its_row in self.meetings[number].items():
                    if its_row + 1 < reached.get(member, its_row + 2):
                        reached[member] = its_row + 1
                        waiting.append(member)
        return other.row >= reached.get(other.rank, other.row + 1)


def _is_fixed(later: Source, earlier: Source) -> bool:
    """True if the source that the later receive names does not depend on what was received, by the program's text."""
    text = text_of(later.file)
    if text is None or later.file != earlier.file or later.function != earlier.function:
        return False
    if text.line(later.line) != later.code:
        return False
    function = text.function(later.function, later.line)
    named = None if function is None else _named_source(function, later.line)
    if function is None or named is None:
        return False
    received = _received_names(function)
    if _mentions(named, received) or not _is_plain(named, function):
        return False
    headers = [header for step in steps_to(function, later.line) for header in _headers(step.statement)]
    return not any(_mentions(header, received) for header in (*headers, *_leaving(function)))


def _named_source(function: Function, line: int) -> ast.expr | None:
    """The argument of a receive on this line that names its source; None where there is not exactly one."""
    found = []
    for node in ast.walk(function):
        if (
            isinstance(node, ast.Call)
            and node.lineno <= line <= (node.end_lineno or 0)
            and name_of(node.func) in _RECEIVES
        ):
            given = [one.value for one in node.keywords if one.arg in ("src", "group_src")]
            found += given or node.args[1:2]
    return found[0] if len(found) == 1 else None


def _received_names(function: Function) -> set[str]:
    """The names whose values depend on what was received, or from whom."""
    found: set[str] = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and name_of(node.func) in _RECEIVES:
            found |= {name.id for value in node.args[:1] for name in ast.walk(value) if isinstance(name, ast.Name)}
    while True:
        before = len(found)
        for node in ast.walk(function):
            targets, value = _assigned(node)
            if value is not None and (_mentions(value, found) or _receives(value)):
                found |= {name.id for one in targets for name in ast.walk(one) if isinstance(name, ast.Name)}
        if len(found) == before:
            return found


def _assigned(node: ast.AST) -> tuple[Sequence[ast.expr], ast.expr | None]:
    """The targets of an assignment of any kind, and its value."""
    if isinstance(node, ast.Assign):
        return node.targets, node.value
    if isinstance(node, ast.AnnAssign | ast.AugAssign | ast.NamedExpr):
        return [node.target], node.value
    if isinstance(node, ast.For | ast.comprehension):
        return [node.target], node.iter
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _PUTTING:
        return [node.func.value], ast.Tuple([*node.args], ast.Load())
    return [], None


def _receives(value: ast.expr) -> bool:
    return any(isinstance(node, ast.Call) and name_of(node.func) in _RECEIVES for node in ast.walk(value))


def _mentions(node: ast.AST, names: set[str]) -> bool:
    return any(isinstance(one, ast.Name) and one.id in names for one in ast.walk(node))


def _is_plain(value: ast.expr, function: Function) -> bool:
    """True if the value is made of constants, loop variables and what each rank knows of itself."""
    arguments = getattr(function, "args", None)
    given = {one.arg for one in ast.walk(arguments) if isinstance(one, ast.arg)} if arguments is not None else set()
    for node in ast.walk(value):
        if isinstance(node, ast.Call) and name_of(node.func) not in _HARMLESS:
            return False
        if isinstance(node, ast.Name) and node.id in given - _FIXED:
            return False
        if isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load):
            return False
    return True


def _headers(statement: ast.stmt) -> list[ast.expr]:
    """The expressions that decide whether, and how often, what a statement holds is run."""
    found = [getattr(statement, name, None) for name in ("test", "iter", "subject")]
    return [one for one in found if isinstance(one, ast.expr)]


def _leaving(function: Function) -> list[ast.expr]:
    """The conditions of statements that leave a loop or the function early."""
    return [
        node.test
        for node in ast.walk(function)
        if isinstance(node, ast.If | ast.While)
        and any(isinstance(one, ast.Break | ast.Continue | ast.Return | ast.Raise) for one in ast.walk(node))
    ]
