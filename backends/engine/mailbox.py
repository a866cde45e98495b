"""Matches sends and receives, and the ranks of a collective, and completes both when all have come.

Messages of one sender and one tag stay in order. A receive from any source may take the first message of any sender;
the schedule decides which.

:class:`Meetings` knows the ranks of a waiting collective that have come, those that have not, and those that never
will.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from simcoll.backends.base import Backend
from simcoll.backends.engine.schedules import SENDS, Choices, Decision
from simcoll.backends.engine.tickets import RefusedCallError, RefusedPeerError, Ticket
from simcoll.core.record import Group
from simcoll.errors import CollectiveMismatchError, ConfigurationError
from simcoll.spec.call import ANY_SOURCE, Call
from simcoll.spec.collectives import spec_of
from simcoll.spec.semantics import Array, Outputs
from simcoll.verifier.agreement.compare import compare
from simcoll.verifier.agreement.ddp_models import compare_models
from simcoll.verifier.agreement.p2p_mismatches import Message, unequal
from simcoll.verifier.findings.error_text import message_text, mismatch_text
from simcoll.verifier.findings.finding import Finding, errors_of

_Member: TypeAlias = tuple[str, tuple[int, ...], int]
"""A group's name, its members, and a group rank."""

_Key: TypeAlias = tuple[str, tuple[int, ...], int, int]
"""A group's name, its members, how often they have destroyed it, and the sequence number of a collective."""


class Meetings:
    """Matches the collectives of all groups: the n-th collective of one rank is the n-th of every other one."""

    def __init__(self) -> None:
        self._lives: dict[_Member, int] = {}
        self._sequences: dict[_Member, int] = {}
        self._met: dict[_Key, dict[int, Ticket]] = {}
        self._where: dict[Ticket, _Key] = {}

    def join(self, ticket: Ticket) -> list[Ticket] | None:
        """Add a rank's next collective and set its sequence number; returns all calls if this is the last rank."""
        group, member = ticket.group, _member(ticket.group, ticket.rank)
        ticket.sequence = self._sequences[member] = self._sequences.get(member, 0) + 1
        key = (group.name, group.ranks, self._lives.get(member, 0), ticket.sequence)
        met = self._met.setdefault(key, {})
        met[ticket.rank], self._where[ticket] = ticket, key
        if len(met) < len(group.ranks):
            return None
        del self._met[key]
        for one in met.values():
            del self._where[one]
        return [met[rank] for rank in range(len(group.ranks))]

    def withdraw(self, ticket: Ticket) -> None:
        """Remove a call: its rank does not count as present any more."""
        key = self._where.pop(ticket, None)
        if key is not None:
            del self._met[key][ticket.rank]
            if not self._met[key]:
                del self._met[key]

    def close(self, group: Group, rank: int) -> None:
        """Note that a group rank has destroyed its group: a new group with the same name counts from 1 again."""
        member = _member(group, rank)
        self._lives[member] = self._lives.get(member, 0) + 1
        self._sequences.pop(member, None)

    def life(self, group: Group, rank: int) -> int:
        """Returns the number of times that a group rank has destroyed its group."""
        return self._lives.get(_member(group, rank), 0)

    def incomplete(self) -> list[dict[int, Ticket]]:
        """The calls of the ranks that have come, by group rank, for each waiting collective."""
        return list(self._met.values())

    def absent(self, ticket: Ticket) -> list[int]:
        """The ranks (global) that are missing in the collective of a call."""
        met = self._of(ticket)
        return [rank for place, rank in enumerate(ticket.group.ranks) if place not in met]

    def destroyed(self, ticket: Ticket) -> list[int]:
        """The ranks (global) that a call waits for and that have destroyed their group since."""
        if not self._lives or ticket not in self._where:
            return []
        group, met, life = ticket.group, self._of(ticket), self._where[ticket][2]
        places = [place for place in range(len(group.ranks)) if place not in met]
        return [group.ranks[place] for place in places if self.life(group, place) > life]

    def _of(self, ticket: Ticket) -> dict[int, Ticket]:
        """The calls of the collective of a call; empty where it is no waiting collective."""
        key = self._where.get(ticket)
        return {} if key is None else self._met[key]


def _member(group: Group, rank: int) -> _Member:
    return group.name, group.ranks, rank


class Mailbox:
    """The unmatched sends and receives of all groups."""

    def __init__(self, sends: str, choices: Choices) -> None:
        if sends not in SENDS:
            raise ConfigurationError(f"sends is {sends!r:.40}, expected one of {', '.join(SENDS)}")
        self._kind = sends
        self._choices = choices
        self._sent: dict[Hashable, list[Ticket]] = {}
        self._wanted: dict[Hashable, list[Ticket]] = {}

    def post(self, ticket: Ticket, life: int) -> tuple[Ticket, Ticket] | None:
        """Post one end; returns the send and the receive if the other end is there, else None."""
        sends = ticket.call.op == "send"
        receiver = (ticket.call.peer or 0) if sends else ticket.rank
        place = (ticket.group.name, ticket.group.ranks, life, receiver)
        if sends:
            return self._send(ticket, place)
        return self._receive(ticket, place)

    def buffers(self, ticket: Ticket) -> bool:
        """True if a send without a receive completes at once; its data is copied then."""
        buffered = self._kind == "buffered" or (
            self._kind == "either" and self._choices.choose(Decision.BUFFER, 2) == 1
        )
        if buffered:
            ticket.data = _CopiedData([array.copy() for array in ticket.data.read()])
        return buffered

    def withdraw(self, ticket: Ticket) -> None:
        """Remove an end that no rank waits for any more."""
        for box in (self._sent, self._wanted):
            for place, tickets in list(box.items()):
                if ticket in tickets:
                    tickets.remove(ticket)
                    if not tickets:
                        del box[place]

    def _send(self, send: Ticket, place: Hashable) -> tuple[Ticket, Ticket] | None:
        for receive in self._wanted.get(place, ()):
            if _fits(send, receive):
                _take(self._wanted, place, receive)
                return send, receive
        self._sent.setdefault(place, []).append(send)
        return None

    def _receive(self, receive: Ticket, place: Hashable) -> tuple[Ticket, Ticket] | None:
        first: dict[int, Ticket] = {}
        for send in self._sent.get(place, ()):
            if _fits(send, receive):
                first.setdefault(send.rank, send)
        if not first:
            self._wanted.setdefault(place, []).append(receive)
            return None
        senders = list(first.values())
        option = self._choices.choose(Decision.MESSAGE, len(senders)) if len(senders) > 1 else 0
        _take(self._sent, place, senders[option])
        return senders[option], receive


class _CopiedData:
    """The copied data of a buffered send."""

    def __init__(self, arrays: list[Array]) -> None:
        self._arrays = arrays

    def read(self) -> list[Array]:
        """The copied arrays."""
        return self._arrays

    def write(self, results: Outputs) -> None:
        """Do nothing: a send has no outputs."""


def _fits(send: Ticket, receive: Ticket) -> bool:
    return receive.call.peer in (ANY_SOURCE, send.rank) and (send.call.tag or 0) == (receive.call.tag or 0)


def _take(box: dict[Hashable, list[Ticket]], place: Hashable, ticket: Ticket) -> None:
    box[place].remove(ticket)
    if not box[place]:
        del box[place]


_MOST_KNOWN = 4096
"""The most distinct calls that are remembered to agree; then the memory is cleared (shapes may keep changing)."""


class Settling:
    """Judges and runs calls that have met; ``backend`` refuses some."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._agreed: set[tuple[Call, int]] = set()

    def collective(self, met: Sequence[Ticket]) -> None:
        """Complete a collective, given all its calls by group rank: each has its result or its error then."""
        if self._agree(met):
            _run(met)

    def message(self, send: Ticket, receive: Ticket) -> None:
        """Complete a message: transfer the data, or give both ends their error."""
        receive.source, receive.met = send.rank, True
        taken = replace(receive.record(), call=replace(receive.call, peer=send.rank))
        finding = unequal(Message(receive.group, send.global_rank, receive.global_rank, send.record(), taken))
        if finding is None:
            _transfer(send, receive)
            return
        for end in (send, receive):
            end.error = CollectiveMismatchError(message_text(finding), (finding,))

    def refusal(self, ticket: Ticket) -> str | None:
        """The reason why the backend refuses a call by itself, or None."""
        return self._backend.refusal(ticket.call, ticket.rank, len(ticket.group.ranks))

    def _agree(self, met: Sequence[Ticket]) -> bool:
        first = met[0].call
        equal = all(ticket.call is first or ticket.call == first for ticket in met)
        key = (first, len(met))
        if equal and key in self._agreed and met[0].claim is None:
            return True
        if _mismatched(met) or self._refused(met):
            return False
        if equal and not any(ticket.claim for ticket in met):
            if len(self._agreed) >= _MOST_KNOWN:
                self._agreed.clear()
            self._agreed.add(key)
        return True

    def _refused(self, met: Sequence[Ticket]) -> bool:
        reasons = {ticket.rank: reason for ticket in met if (reason := self.refusal(ticket)) is not None}
        for ticket in met if reasons else ():
            rank, op = ticket.global_rank, ticket.call.op
            if ticket.rank in reasons:
                ticket.error = RefusedCallError(f"rank {rank}: {op}: {reasons[ticket.rank]}")
            else:
                refused = sorted(ticket.group.ranks[one] for one in reasons)
                ticket.error = RefusedPeerError(f"rank {rank}: {op} was refused on ranks {refused}")
        return bool(reasons)


def _mismatched(met: Sequence[Ticket]) -> bool:
    group, records = met[0].group, {ticket.rank: ticket.record() for ticket in met}
    findings = _models(met) or compare(group, records)
    if not errors_of(findings):
        return False
    for ticket in met:
        ticket.error = CollectiveMismatchError(mismatch_text(group, records, ticket.rank, findings), tuple(findings))
    return True


def _models(met: Sequence[Ticket]) -> list[Finding]:
    """The disagreement of the models that the calls declare."""
    if any(ticket.claim is None for ticket in met):
        return []
    models = {ticket.global_rank: ticket.claim.parameters for ticket in met if ticket.claim is not None}
    found = compare_models(met[0].group, models, {ticket.global_rank: ticket.line for ticket in met}, met[0].sequence)
    return [] if found is None else [found]


def _run(met: Sequence[Ticket]) -> None:
    """Compute the results of calls that agree and write them; a buffer that refuses its result is its rank's error."""
    try:
        results = spec_of(met[0].call).result([one.call for one in met], [one.data.read() for one in met])
    except (ValueError, TypeError) as error:
        for ticket in met:
            ticket.error = ticket.error or RefusedCallError(f"rank {ticket.global_rank}: {ticket.call.op}: {error}")
        return
    for ticket, outputs in zip(met, results, strict=True):
        try:
            ticket.data.write(outputs)
        except (ValueError, TypeError) as error:
            ticket.error = RefusedCallError(f"rank {ticket.global_rank}: {ticket.call.op}: {error}")


def _transfer(send: Ticket, receive: Ticket) -> None:
    """Run a message; where the dtypes differ, the bytes are received as they are."""
    sent, room = send.call.inputs, receive.call.outputs
    if [buffer.dtype for buffer in sent] == [buffer.dtype for buffer in room]:
        _run([send, receive])
        return
    carried = b"".join(array.tobytes() for array in send.data.read())
    if carried:
        receive.data.write([np.frombuffer(carried, np.dtype(room[0].dtype)).reshape(room[0].shape)])
