"""A simulated rank in a group: its calls, and the requests that it waits for.

Beside its program a rank has a black box, open calls, and the groups that it makes. The line of the program that makes
a call is found here, too.
"""

from __future__ import annotations

import linecache
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from types import CodeType, FrameType

from simcoll.backends.engine.parking import StuckError
from simcoll.backends.engine.tickets import Ticket
from simcoll.backends.engine.virtual_time import nanoseconds
from simcoll.backends.engine.world import World
from simcoll.backends.simulated.async_checks import ArrayData, SimulatedEntry, SimulatedFlight, SimulatedFlights
from simcoll.backends.simulated.values import RankValueChecks
from simcoll.blackbox.memory_box import MemoryBox
from simcoll.core.record import UNKNOWN_SOURCE, Group, Source, State, source_document
from simcoll.core.source_roots import package_folder
from simcoll.core.trace import ASYNCHRONOUS, AWAITED
from simcoll.spec.call import Call
from simcoll.spec.collectives import spec_of
from simcoll.spec.ddp_model import Claim, to_json
from simcoll.spec.semantics import Array
from simcoll.spec.table import Kind
from simcoll.verifier.findings.describe import sizes_text

_FOLDERS = (package_folder("simcoll.backends"), package_folder("simcoll.simulation"))
"""The code that runs simulated ranks, and that plays scenarios: neither is the program's, nor the scenario's."""

_own: dict[str, bool] = {}
_sources: dict[tuple[CodeType, int], Source] = {}


def calling_line() -> Source:
    """The innermost line on the stack that is not simcoll's own code."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _is_own(frame.f_code.co_filename):
        frame = frame.f_back
    return UNKNOWN_SOURCE if frame is None else _source(frame.f_code, frame.f_lineno)


def raising_line(error: BaseException) -> Source:
    """The innermost line of an exception's traceback that is not simcoll's own code."""
    frames = [(frame.f_code, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    users = [(code, line) for code, line in frames if not _is_own(code.co_filename)]
    return _source(*users[-1]) if users else UNKNOWN_SOURCE


def _is_own(file: str) -> bool:
    own = _own.get(file)
    if own is None:
        own = _own[file] = os.path.realpath(file).startswith(_FOLDERS)
    return own


def _source(code: CodeType, line: int) -> Source:
    # Equal code in two files is equal as a code object.
    source = _sources.get((code, line))
    if source is None or source.file != code.co_filename:
        text = linecache.getline(code.co_filename, line).strip()
        source = _sources[code, line] = Source(code.co_filename, line, code.co_name, text)
    return source


class Rank:
    """The state of a simulated rank; ``rank`` is global."""

    def __init__(self, rank: int, world: World, values: str = "off") -> None:
        self.rank = rank
        self.world = world
        self.values = RankValueChecks(values)
        self.box = MemoryBox(rank, world.size, "detail", self._now)
        self.flights = SimulatedFlights()
        self.hangs_at: Source | None = None
        """The line at which it computes forever."""
        self.polls_at: Source | None = None
        """The line at which it last polled for the end of a call that had not ended."""
        self._ordinal = 0
        self._models: set[int] = set()

    def _now(self) -> int:
        return nanoseconds(self.world.clock.now(self.rank))

    def event(self, kind: str, **data: object) -> None:
        """Record an event."""
        self.world.clock.call(self.rank)
        self.box.event(kind, **data)

    def new_group(
        self, ranks: Sequence[int] | None, description: str, line: Source, *, ordered: bool = False
    ) -> Group | None:
        """Make a group, and wait for its members; None for a non-member. ``ordered``: the members keep their order."""
        members = _members(range(self.world.size) if ranks is None else ranks, self.world.size, self.rank)
        members = members if ordered else sorted(members)
        self._ordinal += 1
        place = {"life": 1, "ordinal": self._ordinal}
        self.event("creating", **place, ranks=members, source=source_document(line))
        group = Group(str(self._ordinal), description, tuple(members))
        if self.rank in members:
            self._meet(group, line)
        self.event("created", **place)
        return group if self.rank in members else None

    def _meet(self, group: Group, line: Source) -> None:
        """Wait for the other members; this meeting is not recorded."""
        if len(group.ranks) > 1:
            making = Group(f"making {group.name}", "", group.ranks)
            ticket = Ticket(making, group.ranks.index(self.rank), Call("barrier", "barrier"), ArrayData((), ()), line)
            self.world.post(ticket)
            self.world.wait(ticket)

    def state_parameters(self, group: Group, claim: Claim, line: Source) -> None:
        """Record the model that is about to be trained on a group; each list of parameters is written once."""
        known = {} if claim.digest in self._models else {"parameters": to_json(claim.parameters)}
        self._models.add(claim.digest)
        document = source_document(line)
        digest = f"{claim.digest:016x}"
        self.event("parameters", group=group.name, digest=digest, count=claim.count, source=document, **known)

    def non_member(self, function: str, line: Source) -> None:
        """Record a call on a group that this rank is no member of."""
        self.event("non_member", function=function, count=1, source=source_document(line))

    def refuse(self, function: str, error: Exception, line: Source) -> None:
        """Record a refused call."""
        document = source_document(line)
        details = {"function": function, "type": type(error).__name__, "message": str(error)}
        self.event("rejected", group=None, sequence=None, source=document, **details)

    def hang(self, line: Source) -> None:
        """Never make another call; ends when no other rank can go on."""
        self.hangs_at = line
        with self.world.threads.lock:
            place = self.world.threads.place(self.rank)
        self.world.threads.wait(place)


def _members(ranks: Sequence[int], size: int, rank: int) -> list[int]:
    if not isinstance(ranks, Iterable):
        raise TypeError(f"rank {rank}: new_group of {ranks!r:.40}: give a list of ranks")
    members = [int(member) for member in ranks]
    if not members or len(set(members)) < len(members) or not all(0 <= member < size for member in members):
        given = sizes_text(members)
        raise ValueError(f"rank {rank}: new_group of {given}: give distinct ranks of the world of {size}, from 0")
    return members


class Membership:
    """A rank's membership of a group; counts its calls there."""

    def __init__(self, rank: Rank, group: Group) -> None:
        self.rank = rank
        self.group = group
        self.group_rank = group.ranks.index(rank.rank)
        self._index = rank.box.group(group)
        self._sequence = 0
        self._p2p_sequence = 0

    def post(
        self,
        call: Call,
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        line: Source,
        *,
        asynchronous: bool = False,
        claim: Claim | None = None,
    ) -> Request:
        """Make a call and return its request, which is to be waited for."""
        rank, spec = self.rank, spec_of(call)
        # Before it is recorded: it is no call of this rank.
        rank.world.threads.check_own(rank.rank)
        rank.world.clock.call(rank.rank)
        pair = spec.kind is Kind.POINT_TO_POINT
        rank.world.check_failure(rank.rank)
        self._sequence += not pair
        self._p2p_sequence += pair
        number = rank.box.write(
            self._index,
            self._sequence,
            rank.box.signature(call),
            rank.box.source(line),
            self._p2p_sequence if pair else 0,
            State.STARTED,
            ASYNCHRONOUS if asynchronous else AWAITED,
        )
        entry = SimulatedEntry(rank.box, self.group, line, self._sequence, number)
        data = ArrayData(inputs, outputs)
        size = len(self.group.ranks)
        entry.values = data.values = rank.values.begin(call, self.group_rank, size, self._index, self._sequence)
        reads = list(inputs) if spec.sends_inputs(call, self.group_rank) else []
        writes = list(outputs) if spec.brings_result(call, self.group_rank) else []
        return Request(self, entry, call, data, reads, writes, asynchronous, claim)


class Request:
    """The handle of a call: a Work in c10d, a request in MPI."""

    def __init__(
        self,
        member: Membership,
        entry: SimulatedEntry,
        call: Call,
        data: ArrayData,
        reads: Sequence[Array],
        writes: Sequence[Array],
        asynchronous: bool,
        claim: Claim | None,
    ) -> None:
        self._rank = member.rank
        self._entry = entry
        self._flight: SimulatedFlight | None = None
        flights, world = member.rank.flights, member.rank.world
        ticket = Ticket(member.group, member.group_rank, call, data, entry.line, claim=claim, deferred=asynchronous)
        self._ticket = entry.ticket = ticket
        if asynchronous:
            self._flight = flights.open(entry, reads, writes)
            # What a message sends is not proved before it leaves.
            data.flight = None if ticket.is_message and reads else self._flight
            data.notice = partial(flights.changed, self._flight, known=True)
        else:
            flights.meet(entry, reads, writes)
        ticket.callbacks.append(entry.ended)
        world.post(ticket)

    def wait(self) -> int:
        """Wait for the call's end; returns the sender's group rank for a receive, else the caller's.

        Raises :class:`~simcoll.errors.CollectiveMismatchError` if the ranks disagree,
        :class:`~simcoll.backends.engine.tickets.RefusedCallError` for a call that is invalid by itself,
        :class:`~simcoll.backends.engine.parking.StuckError` if no missing rank can come any more, and
        :class:`~simcoll.backends.engine.tickets.PeerFailedError` if another rank has failed.
        """
        self._observe()
        self._rank.world.wait(self._ticket)
        self._rank.flights.waits += 1
        return self._ticket.source

    def is_completed(self) -> bool:
        """True if the call has ended, without waiting; if so, the program need not wait."""
        if not self._ticket.done:
            self._rank.polls_at = calling_line()
        try:
            ended = self._rank.world.has_ended(self._ticket)
        except StuckError:
            # Polling forever counts as waiting.
            self._entry.mark(AWAITED)
            raise
        if not ended:
            return False
        self._observe()
        self._rank.flights.waits += 1
        return True

    test = is_completed

    def _observe(self) -> None:
        self._entry.mark(AWAITED)
        if self._flight is not None:
            self._rank.flights.awaited(self._flight, calling_line())
            self._flight = None

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        flight = getattr(self, "_flight", None)
        # The interpreter's end takes away this module's names.
        if flight is not None and not is_finalizing():
            self._rank.flights.dropped(flight)
            if self._ticket.is_message:
                self._rank.world.drop_message(self._ticket)
