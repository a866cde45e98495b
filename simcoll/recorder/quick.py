"""The quick way of a call from its arguments to its slot in the black box, in one step that is compiled.

A synchronous call is launched and waited for in the same step.

It is for collectives that a group has made before, and of which there is nothing to note but that they were made again,
nor their values to be checked: the same bytes as :meth:`~simcoll.recorder.recorder.GroupLog.begin` writes, and half of
the time that a synchronous call costs where it is recorded. Every other call goes the whole way, which is Python's.

An asynchronous call whose memory no other open call shares is an :class:`OpenCall` until it was waited for: what has to
be known to see a write to its buffers, or that its Work was dropped. Where there is more to say than that it was waited
for, :class:`~simcoll.wrapper.async_checks.Flights` makes a ``Flight`` of it, which says it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import dataclass
from datetime import timedelta
from struct import pack
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import torch
from torch.distributed import Work

from simcoll.blackbox.format import ABSENT, ASYNCHRONOUS, AWAITED
from simcoll.core.native import native
from simcoll.core.rank_local import RankLocal
from simcoll.core.record import UNKNOWN_SOURCE, Source, State
from simcoll.recorder.arguments import UsualForm, compiled_reader
from simcoll.recorder.pending_errors import PENDING_ERRORS
from simcoll.recorder.source import Site, known_chains, look

if TYPE_CHECKING:
    from simcoll.recorder.recorder import GroupLog, Prepared, Use, Written

_MOST_LINES = 4096
"""Places whose lines are kept at hand; a program with more starts over."""


class Quick(Protocol):
    """The quick way of the calls of one group (``_calls.c``)."""

    def begin(self, usual: UsualForm, args: tuple[object, ...], /) -> Written | OpenCall | None:
        """Write down a call of the method of this form, and that the thread that makes it waits for a synchronous one.

        An open call where it is watched, too. None, and nothing is written, where the call has to go the whole way.
        """
        ...

    def run(
        self, usual: UsualForm, args: tuple[object, ...], method: Callable[..., Work | None], pipeline: Carrier, /
    ) -> Work | Quick | None:
        """Write a call down (:meth:`begin`), and carry it out; this object, and nothing is written, where it has to go
        the whole way. What is not to be carried out here the pipeline does. Raises what the backend raises.
        """
        ...


class Carrier(Protocol):
    """A pipeline, as the quick way knows it."""

    def at_once(self, written: Written, method: Callable[..., Work | None], args: Sequence[object], /) -> Work | None:
        """Carry a call out that was written down, and is not open."""
        ...

    def refused(self, call: OpenCall, error: Exception, /) -> NoReturn:
        """Note the error with which the backend has refused an open call, and raise it."""
        ...

    def go_on(self, call: OpenCall, /) -> Work | None:
        """The Work of an open call that was launched, and cannot go the quick way to its end."""
        ...

    def failed(self, written: Written, error: Exception, waited: bool, /) -> NoReturn:
        """Note the error of a call that was carried out, and raise it; ``waited`` if it came of the wait."""
        ...

    def wait_on(self, written: Written, inner: Work | None, /) -> Work | None:
        """Wait for a call that was launched, and handed on to be compared, and did not end in a moment."""
        ...


class OpenCall(Protocol):
    """An asynchronous call that went the quick way (``_calls.c``).

    It is open until a wait for it begins, or until its owner notes it (:meth:`noted`); ``flight`` is what the owner has
    made of it then. One that is freed before tells its owner that its Work was dropped.
    """

    prepared: Prepared
    written: Written
    """What :meth:`Quick.begin` returns for any other asynchronous call, without its tensors."""
    place: Site
    key: tuple[object, ...]
    log: GroupLog
    owner: Any
    since: int
    """The number of waits of the owner when it was made."""
    inner: Work | None
    """The backend's Work, once it was launched."""
    flight: Any
    is_open: bool
    unwaited: int
    """Not 0 until another wait has begun since it was made."""
    arriving: int
    """Not 0 where the end of a wait that has begun shows writes to its results."""
    tensors: dict[str, list[torch.Tensor]]
    """Those of the call by role, while it is open or its results arrive."""
    memory: list[tuple[int, int, int]]
    """The address, the size in bytes (0: it has no memory) and the version that each of them had."""

    def wait(self) -> bool | None:
        """Wait as the backend's Work does, which may raise; None, and nothing is noted, where Python is to wait."""
        ...

    def has_ended(self) -> bool:
        """True if the backend says that the call has ended; asking is no waiting."""
        ...

    def noted(self, flight: object, /) -> None:
        """Watch the call no more: its ``flight`` does."""
        ...

    def ended(self) -> None:
        """Watch the call no more, and tell nobody that its Work was dropped."""
        ...


class OpenCalls(Sized, Protocol):
    """The open calls of a process."""

    def all(self) -> list[OpenCall]:
        """All of them."""
        ...

    def forget(self) -> None:
        """Watch none of them any more."""
        ...


def open_calls(owner: object, others: Sized, orphans: Sized) -> OpenCalls | None:
    """No open calls; None where they were not compiled. The ``owner`` (``Flights``) watches ``others``, while there are
    none of which calls go the quick way, and looks after ``orphans``, whose Works were dropped.
    """
    compiled = native("simcoll.recorder._calls")
    calls: OpenCalls | None = (
        None if compiled is None else compiled.OpenCalls(owner, PENDING_ERRORS.due, others, orphans)
    )
    return calls


@dataclass(frozen=True, slots=True)
class Works:
    """The Works that the program is given for open calls, where the backend's own is a ``plain`` one.

    A wait is tried for the time ``limit`` first (None: it waits until the end).
    """

    work: type[Work]
    plain: type[Work] | None = Work
    limit: timedelta | None = None


@dataclass(frozen=True, slots=True)
class Conditions:
    """When calls may go the quick way: while all of ``quiet`` is empty, for a synchronous call all of ``idle``, too,
    and while ``active`` (None: no matter) has ``session``. Asynchronous ones are watched on it while ``idle`` is empty,
    among the open ``calls``.
    """

    calls: OpenCalls
    works: Works
    quiet: tuple[Sized, ...]
    idle: tuple[Sized, ...] = ()
    active: RankLocal[Any] | None = None
    session: object = None
    carries: bool = False
    """True if synchronous calls need nothing but their launch and a wait."""
    add: Callable[[tuple[Written, int]], None] | None = None
    """Has a synchronous call compared in the background, with the thread that made it."""


def quick_way(
    log: GroupLog,
    known: dict[tuple[object, ...], tuple[Prepared, int, bytes | None]],
    conditions: Conditions,
    join: Callable[[Written], object] | None = None,
) -> Quick | None:
    """The quick way of a group's calls; None where it was not compiled.

    ``known`` has the calls for which it is, their signatures and their :func:`memory_plan`, by key. Calls are launched
    at once unless they ``join`` a queue, which only synchronous ones do; each does so before another can be written.
    """
    compiled, reader = native("simcoll.recorder._calls"), compiled_reader()
    if compiled is None or reader is None:
        return None
    lines: dict[Site, tuple[Source, int] | None] = {}
    box = log.box
    quick: Quick = compiled.Quick(
        reader,
        known_chains,
        look,
        lines,
        _learning(lines, box.source),
        known,
        log,
        log.lock.locked,
        box.write,
        box.waits,
        box.advance,
        log.index,
        State.STARTED if join is None else State.SCHEDULED,
        AWAITED,
        ASYNCHRONOUS if join is None else None,
        join,
        conditions.quiet,
        conditions.idle,
        conditions.active,
        conditions.session,
        conditions.calls,
        conditions.works.work,
        conditions.works.plain,
        conditions.works.limit,
        log.values,
        conditions.add,
        conditions.carries,
    )
    return quick


_TELLS, _BRINGS = 1, 2


def memory_plan(tensors: Mapping[str, Sequence[torch.Tensor]], use: Use) -> bytes | None:
    """What stays the same of the memory of a call, as ``_calls.c`` reads it; None for one that is not to be watched on
    the quick way, as there are tensors with gaps.
    """
    numbers, brings = [0], False
    for role, of_role in tensors.items():
        for tensor in of_role:
            if tensor.layout is not torch.strided or not tensor.is_contiguous():
                return None
            writes, sends = use.writes and role != "inputs", use.sends and not use.copies and role != "outputs"
            brings |= writes and tensor.numel() > 0
            # As call_memory.memory_of looks at versions.
            counts = 0 if sends else use.counts if writes and use.counts is not None else -1
            numbers += tensor.nbytes, counts, int(writes)
    if not any(numbers[1::3]):
        return None
    numbers[0] = use.tells * _TELLS | brings * _BRINGS
    return pack(f"={len(numbers)}q", *numbers)


def _learning(
    lines: dict[Site, tuple[Source, int] | None], number_of: Callable[[Source], int]
) -> Callable[[Site], tuple[Source, int] | None]:
    """Returns a function that puts the line of a place into ``lines``, with its number; None for one without a line."""

    def learn(site: Site) -> tuple[Source, int] | None:
        if len(lines) >= _MOST_LINES:
            lines.clear()
        number = ABSENT if site.source is UNKNOWN_SOURCE else number_of(site.source)
        line = None if number == ABSENT else (site.source, number)
        # One that found no room may find it later, and is looked up each time.
        if line is not None or site.source is UNKNOWN_SOURCE:
            lines[site] = line
        return line

    return learn
