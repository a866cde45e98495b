"""The quick way of a call from its arguments to its slot in the black box, in one step that is compiled.

It is for collectives that a group has made before, and of which there is nothing to note but that they were made again,
nor their values to be checked:
the same bytes as :meth:`~simcoll.recorder.recorder.GroupLog.begin` writes, and half of the time that a synchronous call
costs where it is recorded. Every other call goes the whole way, which is Python's.
"""

from __future__ import annotations

from collections.abc import Callable, Sized
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from simcoll.blackbox.format import ABSENT, ASYNCHRONOUS, AWAITED
from simcoll.core.native import native
from simcoll.core.rank_local import RankLocal
from simcoll.core.record import UNKNOWN_SOURCE, Source, State
from simcoll.recorder.arguments import UsualForm, compiled_reader
from simcoll.recorder.source import Site, known_chains, look

if TYPE_CHECKING:
    from simcoll.recorder.recorder import GroupLog, Prepared, Written

_MOST_LINES = 4096
"""Places whose lines are kept at hand; a program with more starts over."""


class Quick(Protocol):
    """The quick way of the calls of one group (``_calls.c``)."""

    def begin(self, usual: UsualForm, args: tuple[object, ...], /) -> Written | None:
        """Write down a call of the method of this form, and that the thread that makes it waits for a synchronous one.

        None, and nothing is written, where the call has to go the whole way.
        """
        ...


@dataclass(frozen=True, slots=True)
class Conditions:
    """When calls may go the quick way: while all of ``quiet`` is empty, for a synchronous call all of ``idle``, too,
    and while ``active`` (None: no matter) has ``session``.
    """

    quiet: tuple[Sized, ...]
    idle: tuple[Sized, ...] = ()
    active: RankLocal[Any] | None = None
    session: object = None


def quick_way(
    log: GroupLog,
    known: dict[tuple[object, ...], tuple[Prepared, int]],
    conditions: Conditions,
    join: Callable[[Written], object] | None = None,
) -> Quick | None:
    """The quick way of a group's calls; None where it was not compiled.

    ``known`` has the calls for which it is, and their signatures, by key. Calls are launched at once unless they
    ``join`` a queue, which only synchronous ones do; each does so before another can be written down.
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
        log.lock,
        box.write,
        log.index,
        State.STARTED if join is None else State.SCHEDULED,
        AWAITED,
        ASYNCHRONOUS if join is None else None,
        join,
        conditions.quiet,
        conditions.idle,
        conditions.active,
        conditions.session,
        log.values,
    )
    return quick


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
