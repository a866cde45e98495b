"""How the ranks made their process groups: who began to make which, of which members, and who waits in the making.

``new_group`` must be called by every rank, with the same members, in the same order: torch names groups by counting,
and a member waits for the other members under that name. Groups made with ``use_local_synchronization`` do not count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from simcoll.core.record import Event, Source
from simcoll.verifier.findings.failures import number, source_of
from simcoll.verifier.halts.job import Job


@dataclass(frozen=True, slots=True)
class Creation:
    """One rank's making of a group: the ``ordinal``-th since the default group was made for the ``life``-th time."""

    rank: int
    life: int
    ordinal: int
    members: tuple[int, ...]
    source: Source
    time_ns: int
    done: bool


def creations_of(rank: int, events: Sequence[Event]) -> list[Creation]:
    """The groups that a rank made or began to make, in order."""
    done = {_place(event) for event in events if event.kind == "created"}
    found = []
    for event in events:
        place, members = _place(event), event.data.get("ranks")
        if event.kind != "creating" or place is None or not isinstance(members, list):
            continue
        if all(type(member) is int for member in members):
            found.append(
                Creation(rank, *place, tuple(members), source_of(event.data), event.time_ns, done=place in done)
            )
    return found


def _place(event: Event) -> tuple[int, int] | None:
    life, ordinal = number(event, "life"), number(event, "ordinal")
    return None if life is None or ordinal is None else (life, ordinal)


def by_place(job: Job) -> list[Mapping[int, Creation]]:
    """Who made the first group, the second and so on, by rank."""
    found: dict[tuple[int, int], dict[int, Creation]] = {}
    for rank, trace in job.traces.items():
        for creation in creations_of(rank, trace.events):
            found.setdefault((creation.life, creation.ordinal), {})[rank] = creation
    return [found[place] for place in sorted(found)]


def waiting_makers(made: Mapping[int, Creation], *, connecting: bool = False) -> list[Creation]:
    """Those inside the making of a group of theirs; ``connecting``: those inside ``init_process_group``."""
    unfinished = [creation for creation in made.values() if not creation.done]
    if connecting:
        return [creation for creation in unfinished if creation.ordinal == 0]
    return [creation for creation in unfinished if creation.rank in creation.members]


def in_the_making(job: Job) -> set[int]:
    """The ranks that are inside the making of a group of theirs."""
    return {one.rank for made in by_place(job) for one in waiting_makers(made)}
