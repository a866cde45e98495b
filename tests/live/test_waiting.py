"""The shares of time in which ranks wait and are waited for, by records whose times are known."""

import numpy as np
import pytest

from simcoll.core.trace import ASYNCHRONOUS, AWAITED, ON_DEVICE
from simcoll.live.waiting import shares_of
from tests.live.test_records import records_of, steps


def test_the_last_one_is_late_by_what_all_others_waited():
    ends = [100, 200, 300]
    records = records_of(steps([10, 110, 210], ends), steps([30, 130, 230], ends), steps([90, 190, 290], ends))
    shares = shares_of(records, np.array([3]))
    assert shares.waiting == pytest.approx([240 / 290, 180 / 270, 0])
    assert shares.late == pytest.approx([0, 0, 180 / 210])


def test_clocks_of_hosts_need_not_agree():
    together = records_of(steps([10, 110], [100, 200]), steps([90, 190], [100, 200]))
    apart = records_of(steps([10, 110], [100, 200]), steps([5090, 5190], [5100, 5200]))
    one, other = (shares_of(records, np.array([2])) for records in (together, apart))
    assert np.array_equal(one.waiting, other.waiting)
    assert np.array_equal(one.late, other.late)


@pytest.mark.parametrize(
    ("flags", "told"),
    [(AWAITED, True), (ASYNCHRONOUS | AWAITED, False), (ASYNCHRONOUS | ON_DEVICE, True)],
    ids=["synchronous", "asynchronous on the host", "asynchronous on a device"],
)
def test_a_host_that_computes_meanwhile_does_not_wait(flags, told):
    records = records_of(steps([10, 110], [100, 200], flags), steps([90, 190], [100, 200], flags))
    shares = shares_of(records, np.array([2]))
    assert np.isnan(shares.late).tolist() == [not told] * 2


@pytest.mark.parametrize(
    ("waits", "late"),
    [((30, 60, 30), [0, 60 / 99, 0]), ((90, 99, 95), [0, 0, 0])],
    ids=["others wait from 30 ms on", "others compute until 90 ms"],
)
def test_of_asynchronous_calls_only_the_time_counts_in_which_the_others_waited(waits, late):
    """Rank 1 launches its calls at 90 ms, the others at 1 and 2 ms; all end at 100 ms."""
    launches = [(1, 2), (90, 90), (1, 2)]
    ranks = [[(0, 1, first, 100, ASYNCHRONOUS), (0, 2, second, 100, ASYNCHRONOUS)] for first, second in launches]
    records = records_of(*ranks)
    records.slots["wait_us"] = [
        max(wait - begin, 1) * 1000 for wait, own in zip(waits, launches, strict=True) for begin in own
    ]
    shares = shares_of(records, np.array([3]))
    assert (shares.late > 0).tolist() == [share > 0 for share in late]
    assert (shares.waiting > 0).tolist() == [any(late), False, any(late)]


def test_a_collective_of_which_a_member_is_missing_tells_nothing():
    records = records_of(steps([10, 110], [100, 200]), steps([90, 190], [100, 200]))
    shares = shares_of(records, np.array([3]))
    assert np.isnan(shares.waiting).all()
