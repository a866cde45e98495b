"""A ticket: one posted call in the engine, and the errors with which it can end."""

from __future__ import annotations

import unittest
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from simcoll.backends.engine.parking import ParkingPlace, StuckError
from simcoll.core.ranges import ranks_text
from simcoll.core.record import UNKNOWN_SOURCE, Group, Record, Source
from simcoll.spec.call import ANY_SOURCE, Call
from simcoll.spec.collectives import spec_of
from simcoll.spec.ddp_model import Claim
from simcoll.spec.semantics import Array, Outputs
from simcoll.spec.table import Kind


class RefusedCallError(ValueError):
    """A call that contradicts itself, or asks for an undefined reduction."""


class RefusedPeerError(RuntimeError):
    """Another rank's call of this collective was refused, so that it can never complete."""


class DestroyedError(RuntimeError):
    """A rank that a collective needs has destroyed its group."""


class PeerFailedError(RuntimeError):
    """Another rank has failed, and this one is ended for that; the cause is the other rank's exception."""


class Data(Protocol):
    """The buffers of one call, as numpy arrays."""

    def read(self) -> Sequence[Array]:
        """The inputs' current values."""
        ...

    def write(self, results: Outputs) -> None:
        """Fill the outputs; None leaves one unchanged."""
        ...


@dataclass(slots=True, eq=False)
class Ticket:
    """One rank's call in the engine.

    ``rank`` is the group rank, ``line`` the user's line, ``claim`` the model that is about to be trained on the group,
    which the call declares, ``sequence`` the number among the group's collectives (0 for messages). ``deferred``: if
    this call is the last of its collective, the collective runs when the rank next waits, so that changes of the rank's
    buffers meanwhile are seen. When it is ``done``, ``error`` is the error of its end, ``met`` is True if a message
    found its other end, and ``source`` the group rank that a receive got it from. ``posted``, ``began`` and ``ended``
    are seconds of virtual time.
    """

    group: Group
    rank: int
    call: Call
    data: Data
    line: Source = UNKNOWN_SOURCE
    claim: Claim | None = None
    deferred: bool = False
    sequence: int = 0
    done: bool = False
    error: BaseException | None = None
    met: bool = False
    source: int = field(init=False)
    posted: float = 0.0
    began: float = 0.0
    ended: float = 0.0
    places: list[ParkingPlace] = field(default_factory=list)
    callbacks: list[Callable[[Ticket], None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.source = self.rank

    @property
    def global_rank(self) -> int:
        """The global rank."""
        return self.group.ranks[self.rank]

    @property
    def is_message(self) -> bool:
        """True for a send or a receive."""
        return spec_of(self.call).kind is Kind.POINT_TO_POINT

    def record(self) -> Record:
        """The call as a record for the verifier."""
        return Record(self.group.name, self.sequence, self.call, self.line)


def waiting_text(ticket: Ticket, absent: Sequence[int]) -> str:
    """The text on a rank's wait in a call; ``absent`` ranks (global) are missing in its collective."""
    rank, call, group = ticket.global_rank, ticket.call, ticket.group
    if not ticket.is_message:
        sequence = ticket.sequence
        never = "which never comes" if len(absent) == 1 else "which never come"
        return f"rank {rank} waits in {call.op} (collective {sequence}) for {ranks_text(absent)}, {never}"
    peer = "any rank" if call.peer == ANY_SOURCE else f"rank {group.ranks[call.peer or 0]}"
    if call.op == "send":
        return f"rank {rank} waits for {peer} to receive its message with tag {call.tag or 0}"
    return f"rank {rank} waits for a message from {peer} with tag {call.tag or 0}"


def peer_failed(rank: int, failed: int, error: BaseException) -> BaseException:
    """The exception that ends ``rank`` because another one has failed; a skip and an exit keep their type."""
    found = PeerFailedError(f"rank {rank} is ended, because rank {failed} failed: {type(error).__name__}: {error}")
    found.__cause__ = error
    if not passes_through(error):
        return found
    same = type(error)(*error.args)
    same.__cause__ = found
    return same


def is_skip(error: BaseException) -> bool:
    """True if a test is skipped: unittest's exception or pytest's, which is recognised by its name."""
    return isinstance(error, unittest.SkipTest) or type(error).__name__ == "Skipped"


def passes_through(error: BaseException) -> bool:
    """True if ranks end with the same kind of exception as the rank that ended first."""
    return isinstance(error, SystemExit) or is_skip(error)


def was_ended_by_others(error: BaseException) -> bool:
    """True if a rank did not fail by itself: it was stuck, or another rank had failed."""
    reason = error.__cause__ if passes_through(error) else error
    return isinstance(reason, (StuckError, PeerFailedError))
