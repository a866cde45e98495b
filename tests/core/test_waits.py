"""The time that a rank waits in its calls: from the begin of the wait, and never twice."""

import numpy as np

from simcoll.core.record import State
from simcoll.core.trace import ASYNCHRONOUS, SLOT
from simcoll.core.waits import waited_ns

US = 1000


def slots_of(*calls):
    """Calls as their begin, the begin of the wait for them after that, and their end, in microseconds."""
    slots = np.zeros(len(calls), SLOT)
    for slot, (begun, wait, ended) in zip(slots, calls, strict=True):
        slot["scheduled_ns"], slot["wait_us"], slot["finished_ns"] = begun * US, wait or 0, ended * US
        slot["flags"] = 0 if wait is None else ASYNCHRONOUS
        slot["state"] = State.COMPLETED
    return slots


def waited(slots, rank=None):
    return waited_ns(slots, slots["scheduled_ns"].astype(np.int64), rank).tolist()


def test_a_synchronous_call_is_a_wait_and_an_asynchronous_one_from_where_it_is_waited_for():
    assert waited(slots_of((10, None, 30))) == [20 * US]
    assert waited(slots_of((10, None, 30), (40, 5, 100), (110, 50, 150), (200, 0, 300))) == [20 * US, 55 * US, 0, -1]


def test_what_is_waited_for_together_counts_once():
    assert waited(slots_of((1, 4, 10), (2, 3, 20), (3, 2, 30))) == [5 * US, 10 * US, 10 * US]


def test_the_waits_of_ranks_are_apart_whatever_their_clocks_say():
    behind, ahead = slots_of((1, 4, 10), (2, 3, 20)), slots_of((10**9 + 1, 4, 10**9 + 10), (10**9 + 2, 3, 10**9 + 20))
    for slots in (np.concatenate([behind, ahead]), np.concatenate([ahead, behind])):
        assert waited(slots, np.array([0, 0, 1, 1])) == [5 * US, 10 * US] * 2
    assert waited(np.zeros(0, SLOT), np.zeros(0, np.int64)) == []
