"""SC801: a rank for which the others repeatedly wait, and the time that costs.

A rank's own clock alone measures its time inside a collective: the rank that comes last is inside for the shortest
time. So differing clocks of hosts do not matter. A dump states when a call was queued and when its end was seen: that
is no time in which a rank was inside. In an asynchronous collective of a host only the time counts in which the other
ranks waited (:mod:`simcoll.core.waits`): before, they computed.

Where a device runs the calls while the host goes on, only the device's own times measure its time inside. Asynchronous
calls are left out there: a device may compute while it waits in them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from simcoll.core.record import State
from simcoll.core.trace import ASYNCHRONOUS, ON_DEVICE, ran_on_device, slot_times
from simcoll.core.waits import begins_burst, waited_ns
from simcoll.verifier.agreement.columns import GroupColumns, Part
from simcoll.verifier.findings.finding import Finding
from simcoll.verifier.findings.rules import STRAGGLER
from simcoll.verifier.halts.inferred import is_dump

_Inside: TypeAlias = tuple[npt.NDArray[np.uint32], npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]
"""Positions of one rank's collectives, the seconds that it was inside each of them, those that it waited there, and
whether the call begins a burst.
"""

_ENOUGH_COLLECTIVES = 30
_USUALLY = 0.9
_NOTICEABLE = 0.001
_SECONDS_LOST = 5.0
_SHARE_LOST = 0.4


def stragglers(groups: Sequence[GroupColumns]) -> list[Finding]:
    """A warning for the group that lost most time by one rank: at least five seconds and two fifths of its time,
    both without the few longest waits.

    A rank that is slow for a while, or for a purpose (rank 0 evaluates), is nobody's fault and is not named.
    """
    most: dict[int, float] = {}
    devices: dict[object, bool] = {}
    found = [one for columns in groups if (one := _of_group(columns, most, devices)) is not None]
    return [finding for _, finding in sorted(found, key=lambda item: -item[0])[:1]]


def _of_group(
    columns: GroupColumns, most: dict[int, float], known_devices: dict[object, bool]
) -> tuple[float, Finding] | None:
    """The seconds that one rank costs a group, and the warning; ``most`` is what :func:`_at_most` knows of ranks,
    ``known_devices`` what :func:`~simcoll.core.trace.ran_on_device` does.
    """
    if len(columns.parts) != len(columns.group.ranks) or len(columns.parts) < 2:
        return None
    if any(is_dump(part.trace) for part in columns.parts):
        return None
    on_device = _on_device(columns.parts[0], known_devices)
    if not on_device and _at_most(columns, most) < _SECONDS_LOST:
        return None
    if any(_on_device(one, known_devices) != on_device for one, _ in columns.classes(of_slots=True)):
        return None
    known = _completed(columns, on_device=on_device)
    if _most_lost(known) < _SECONDS_LOST:
        return None
    inside = _by_position(known, 1)
    if len(inside) < _ENOUGH_COLLECTIVES:
        return None
    if _all_blocked(known):
        slow, waited = _slowest(inside, inside)
    else:
        slow, waited = _slowest(inside, _by_position(known, 2))
        # Who comes late to a burst of calls for which ranks wait together is late to the first of them alone.
        begins = _by_position(known, 3)[:, slow]
        begins[0] = True
        waited = np.add.reduceat(waited, np.flatnonzero(begins))
    late = waited[waited >= _NOTICEABLE]
    # A few long waits are something else: rank 0 evaluates, a node has hiccups. Neither side of the share has them.
    lost, span = float(np.sort(late)[: -1 - len(late) // 20].sum()), _span(columns.parts[0], on_device=on_device)
    usual = span - (float(late.sum()) - lost)
    if len(late) < _USUALLY * len(waited) or lost < max(_SECONDS_LOST, _SHARE_LOST * usual):
        return None
    rank = columns.group.ranks[columns.parts[slow].group_rank]
    what = "collectives" if len(waited) == len(inside) else "bursts of collectives"
    message = (
        f"rank {rank} came last to at least {100 * _USUALLY:.0f} % of {len(waited)} {what}: the others waited "
        f"for it for {late.sum():.0f} s of {span:.0f} s"
    )
    finding = STRAGGLER.finding(
        message,
        group=columns.group,
        ranks=columns.group.ranks,
        culprits=(rank,),
    )
    return lost, finding


def _on_device(part: Part, known: dict[object, bool]) -> bool:
    """True if a device gave the time of any of a rank's calls of the group."""
    slots = part.trace.slots
    return ran_on_device(part.trace, known) and bool((slots["flags"][part.rows] & ON_DEVICE).any())


def _most_lost(known: Sequence[_Inside]) -> float:
    """An upper bound of the seconds lost by one rank: a median is at most twice the mean of non-negative values."""
    total = sum(float(np.maximum(waited, 0).sum()) for _, _, waited, _ in known)
    return 2 * total / (len(known) - 1)


def _all_blocked(known: Sequence[_Inside]) -> bool:
    """True if no call was asynchronous: then ranks waited for as long as they were inside."""
    return all(inside is waited for _, inside, waited, _ in known)


def _at_most(columns: GroupColumns, most: dict[int, float]) -> float:
    """The same bound from the time for which each rank may have waited in all calls of all groups, which is worked out
    once.
    """
    for part in columns.parts:
        if part.trace.rank not in most:
            most[part.trace.rank] = slot_times(part.trace).waited_ns / 1e9
    return 2 * sum(most[part.trace.rank] for part in columns.parts) / (len(columns.parts) - 1)


def _by_position(known: Sequence[_Inside], which: int) -> npt.NDArray[Any]:
    """What is known of each rank (a column) in each collective (a row) that all of them completed."""
    common = known[0][0]
    same = [one[0] is common or np.array_equal(one[0], common) for one in known]
    for alike, (sequences, *_) in zip(same, known, strict=True):
        common = common if alike else np.intersect1d(common, sequences)
    if all(same) and bool((np.diff(common) > 0).all()):
        return np.stack([one[which] for one in known], axis=1)
    return np.stack([one[which][np.searchsorted(one[0], common)] for one in known], axis=1)


def _completed(columns: GroupColumns, *, on_device: bool) -> list[_Inside]:
    """The collectives that each rank completed, of a device only synchronous ones, and for how long it was inside."""
    known: dict[int, _Inside] = {}
    begin = "started_ns" if on_device else "scheduled_ns"
    for one, alike in columns.classes(of_slots=True):
        slots, rows, sequences = one.trace.slots, one.rows, one.sequences
        inside = slots["state"][rows] == State.COMPLETED
        free = (slots["flags"][rows] & ASYNCHRONOUS) != 0
        if on_device:
            inside &= ~free & ((slots["flags"][rows] & ON_DEVICE) != 0)
        if not inside.all():
            rows, sequences, free = rows[inside], sequences[inside], free[inside]
        # Where it is all that a rank did, nothing is copied.
        every = len(rows) == len(slots) and bool((np.diff(rows) == 1).all())
        for place in alike:
            slots = columns.parts[place].trace.slots
            came, ended = slots[begin], slots["finished_ns"]
            if not every:
                came, ended = came[rows], ended[rows]
            seconds = (ended.astype(np.float64) - came) / 1e9
            if free.any():
                own = slots if every else slots[rows]
                waited = waited_ns(own, came.astype(np.int64)) / 1e9
                known[place] = sequences, seconds, waited, begins_burst(own)
            else:
                known[place] = sequences, seconds, seconds, free
    return [known[place] for place in range(len(columns.parts))]


def _span(part: Part, *, on_device: bool) -> float:
    slots, rows = part.trace.slots, part.rows
    if on_device:
        # A host may have queued the calls long before.
        rows = rows[(slots["flags"][rows] & ON_DEVICE) != 0]
    came = slots["started_ns" if on_device else "scheduled_ns"][rows]
    return float(int(slots["finished_ns"][rows].max()) - int(came.min())) / 1e9


def _slowest(inside: npt.NDArray[np.float64], waited: npt.NDArray[np.float64]) -> tuple[int, npt.NDArray[np.float64]]:
    """The column that most often came last, and the time for which the typical other rank then waited in each row."""
    slow = int(np.bincount(inside.argmin(axis=1), minlength=inside.shape[1]).argmax())
    others = np.median(np.delete(waited, slow, axis=1), axis=1)
    return slow, np.maximum(others - inside[:, slow], 0)
