"""Completes a collective when all its ranks have come, and a message when both its ends have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from simcoll.backends.base import Backend
from simcoll.backends.engine.tickets import RefusedCallError, RefusedPeerError, Ticket
from simcoll.errors import CollectiveMismatchError
from simcoll.spec.call import Call
from simcoll.spec.collectives import spec_of
from simcoll.verifier.agreement.compare import compare
from simcoll.verifier.agreement.ddp_models import compare_models
from simcoll.verifier.agreement.p2p_mismatches import Message, unequal
from simcoll.verifier.findings.error_text import message_text, mismatch_text
from simcoll.verifier.findings.finding import Finding, Severity

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
        """Why the backend refuses a call whatever the other ranks do; None if it does not."""
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
    if not any(finding.severity is Severity.ERROR for finding in findings):
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
