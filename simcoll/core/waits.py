"""The time that ranks waited in calls, each by its own clock."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from simcoll.core.record import State
from simcoll.core.trace import ASYNCHRONOUS, ON_DEVICE, Slots

Integers = npt.NDArray[np.int64]


def waited_ns(slots: Slots, came: Integers, rank: Integers | None = None) -> Integers:
    """The nanoseconds that a rank waited in each call; -1 where the record does not tell.

    ``slots`` are records of one rank in the order of the calls, or of several, one after the other, whose places
    ``rank`` has; ``came`` are the times at which the ranks came to the calls. A rank waits in a synchronous call, or
    where a device runs it, from then to its end. In an asynchronous call it waits from the moment at which that was
    written down; of calls for which it waits together, the later ones count from the end of the earlier ones.
    """
    ended = slots["finished_ns"].astype(np.int64)
    flags = slots["flags"]
    free = ((flags & ASYNCHRONOUS) != 0) & ((flags & ON_DEVICE) == 0)
    known = (slots["state"] == State.COMPLETED) & (~free | (slots["wait_us"] > 0))
    if not free.any():
        return np.where(known, ended - came, -1)
    begun = np.where(free, came + slots["wait_us"].astype(np.int64) * 1000, came)
    waits = known & (ended > begun)
    until = _ended_before(np.where(waits & ((flags & ON_DEVICE) == 0), ended, 0), rank)
    waited: Integers = np.where(waits, np.maximum(ended - np.where(free, np.maximum(begun, until), begun), 0), 0)
    return np.where(known, waited, -1)


def begins_burst(slots: Slots, rank: Integers | None = None) -> npt.NDArray[np.bool_]:
    """True for each call but those that a rank made after another one and before it began to wait for that one.

    ``slots`` and ``rank`` are those of :func:`waited_ns`.
    """
    begins = np.ones(len(slots), np.bool_)
    begins[1:] = np.diff(slots["scheduled_ns"].view(np.int64)) >= slots["wait_us"][:-1] * np.int64(1000)
    if rank is not None:
        begins[1:] |= rank[1:] != rank[:-1]
    return begins


def _ended_before(ended: Integers, rank: Integers | None) -> Integers:
    """The latest of these times among the earlier calls of the same rank, 0 before the first."""
    if not len(ended):
        return ended
    latest = np.maximum.accumulate(ended)
    found = np.concatenate([[0], latest[:-1]]).astype(np.int64)
    if rank is None:
        return found
    # The clocks of ranks differ: the times of each are put above those of the rank before.
    origin = int(ended[ended > 0].min(initial=np.iinfo(np.int64).max))
    since = np.clip(np.where(ended > 0, ended - origin + 1, 0), 0, _LONGEST_NS)
    latest = np.maximum.accumulate(since + rank * (_LONGEST_NS + 1)) - rank * (_LONGEST_NS + 1)
    found = np.concatenate([[0], latest[:-1]]).astype(np.int64)
    found[1:][rank[1:] != rank[:-1]] = 0
    return np.where(found > 0, found + origin - 1, 0)


_LONGEST_NS = 1 << 46
"""The longest time between two records at hand (20 hours): 2^17 ranks of it fit 64 bits."""
