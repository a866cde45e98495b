"""The state of one simulated rank beside its program: its black box, its open calls, the groups that it makes.

Finds the line of its program that makes a call, too.
"""

from __future__ import annotations

import linecache
import os
import sys
import traceback
from collections.abc import Iterable, Sequence
from types import CodeType, FrameType

from simcoll.backends.engine.tickets import Ticket
from simcoll.backends.engine.virtual_time import nanoseconds
from simcoll.backends.engine.world import World
from simcoll.backends.simulated.async_checks import ArrayData, SimulatedFlights
from simcoll.blackbox.memory_box import MemoryBox
from simcoll.core.record import UNKNOWN_SOURCE, Group, Source, source_document
from simcoll.core.source_roots import package_folder
from simcoll.spec.call import Call
from simcoll.spec.ddp_model import Claim, to_json
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

    def __init__(self, rank: int, world: World) -> None:
        self.rank = rank
        self.world = world
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
