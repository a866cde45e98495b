"""How far each group came: the last collective that all its recorded members finished, groups of one kind together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from simcoll.core.record import Group, Record, State
from simcoll.core.trace import Trace, record_at
from simcoll.verifier.findings.describe import NAMELESS
from simcoll.verifier.findings.overview import Progress


@dataclass(frozen=True, slots=True)
class _Part:
    """One member's collectives of the group's last life: the finished ones, and how many lives it saw begin."""

    trace: Trace
    index: int
    finished: npt.NDArray[np.uint32]
    lives: int


@dataclass(slots=True)
class _Kind:
    groups: list[tuple[Group, Record | None]] = field(default_factory=list)
    unrecorded: int = 0


def kind_of(group: Group) -> tuple[str, int]:
    """What groups that do the same for different ranks share: description and size; no description is one too."""
    return ("" if group.description in NAMELESS else group.description), len(group.ranks)


def progress_of(traces: Sequence[Trace]) -> tuple[Progress, ...]:
    """Progress by kind of group, in the order in which the groups were made; groups without a collective stay out."""
    parts: dict[tuple[str, tuple[int, ...]], list[_Part]] = {}
    for trace in traces:
        for part in _parts(trace):
            group = trace.groups[part.index]
            parts.setdefault((group.name, group.ranks), []).append(part)
    recorded = {trace.rank for trace in traces}
    kinds: dict[tuple[str, int], _Kind] = {}
    for members in parts.values():
        group = members[0].trace.groups[members[0].index]
        present = len(recorded.intersection(group.ranks))
        kind = kinds.setdefault(kind_of(group), _Kind())
        kind.groups.append((group, _last_finished(members, present)))
        kind.unrecorded += len(group.ranks) - present
    return tuple(_progress(*key, kind) for key, kind in kinds.items())


def _parts(trace: Trace) -> Iterator[_Part]:
    slots = trace.slots
    rows = np.flatnonzero((slots["p2p_sequence"] == 0) & (slots["group"] < len(trace.groups)))
    index, sequence = slots["group"][rows], slots["sequence"][rows]
    done = slots["state"][rows] == State.COMPLETED
    for group in np.flatnonzero(np.bincount(index, minlength=1)) if len(rows) else ():
        mine = index == group
        # A group that was destroyed and made again counts from 1 again.
        begun = np.flatnonzero(mine & (sequence == 1))
        mine[: begun[-1] if len(begun) else 0] = False
        yield _Part(trace, int(group), sequence[mine & done], len(begun))


def _last_finished(parts: Sequence[_Part], present: int) -> Record | None:
    """The record of the last collective that these members finished, all ``present`` ones; None where there is none."""
    lives = max(part.lives for part in parts)
    here = [part for part in parts if part.lives == lives or part.index in part.trace.dropped]
    if len(here) < present or not all(len(part.finished) for part in here):
        return None
    last = min(int(part.finished.max()) for part in here)
    if not all((part.finished == last).any() for part in here):
        common = here[0].finished
        for part in here[1:]:
            common = common[np.isin(common, part.finished)]
        if not len(common):
            return None
        last = int(common.max())
    return _record(here[0], last)


def _record(part: _Part, sequence: int) -> Record | None:
    slots = part.trace.slots
    at = (slots["group"] == part.index) & (slots["sequence"] == sequence) & (slots["p2p_sequence"] == 0)
    return record_at(part.trace, int(np.flatnonzero(at)[-1]))


def _progress(description: str, size: int, kind: _Kind) -> Progress:
    finished = sorted((record for _, record in kind.groups if record is not None), key=lambda record: record.sequence)
    groups = tuple(group for group, _ in kind.groups)
    members = tuple(sorted({rank for group in groups for rank in group.ranks}))
    least = finished[0] if len(finished) == len(groups) else None
    return Progress(description, size, groups, members, least, finished[-1] if finished else None, kind.unrecorded)
