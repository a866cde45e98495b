"""SC304 on devices: a message whose other end has not been made keeps ranks apart that wait for each other.

The host that made such a message goes on, and the rank that lacks the other end comes to a collective: its device waits
there for the sender's, which stands in the message. Both are seen in calls, so neither is late.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from simcoll.core.trace import Stall
from simcoll.verifier.agreement.p2p_lanes import Unmatched
from simcoll.verifier.findings.finding import CallPlace, Finding, Side
from simcoll.verifier.findings.rules_p2p import P2P_UNMATCHED
from simcoll.verifier.findings.sides import lines
from simcoll.verifier.halts.incidents import Job
from simcoll.verifier.halts.wait_graph import Wait, Waits, waits_of


def unmet_message(cycle: Sequence[Wait]) -> Finding | None:
    """SC304 for a cycle of waits that one message of a device closes among collectives; None for any other cycle.

    Where two messages wait for each other, it is their order that is wrong, and none lacks.
    """
    messages = [place for place, wait in enumerate(cycle) if wait.record.p2p_sequence]
    if len(messages) != 1 or not cycle[messages[0]].on_device:
        return None
    wait, other = (cycle[place % len(cycle)] for place in (messages[0], messages[0] + 1))
    peer = other.rank
    lacks = "receive" if wait.record.call.op == "send" else "send"
    message = (
        f"the device of rank {wait.rank} waits in {wait.where} for rank {peer}, which waits in {other.where} and has "
        f"made no {lacks} for it before"
    )
    return Finding(
        P2P_UNMATCHED.code,
        P2P_UNMATCHED.severity,
        message,
        group=wait.group,
        ranks=tuple(sorted({wait.rank, peer})),
        sides=(_side(wait), _side(other)),
    )


def assumed_unmet(job: Job, waits: Waits, stall: Stall | None, unmatched: Sequence[Unmatched]) -> Finding | None:
    """The same for a job that was given up while a host was not seen to wait for its device, as in ``tensor.item()``.

    A message that nobody waits for holds up no host.
    """
    if stall is None or not stall.over or not stall.watched:
        return None
    standing = {wait.rank for wait in waits.all() if wait.on_device and wait.record.awaited}
    cycle = waits_of(job, replace(stall, blocked=stall.blocked | standing), unmatched).cycle()
    held = all(wait.record.awaited for wait in cycle if wait.record.p2p_sequence)
    return unmet_message(cycle) if held else None


def _side(wait: Wait) -> Side:
    stated = lines([(wait.rank, wait.record.source)])
    return Side((wait.rank,), wait.record.call, stated, "waits", CallPlace.of(wait.group, wait.record, wait.rank))
