"""Waiting, lateness, steps and progress, by records whose times are known."""

import numpy as np
import pytest

from simcoll.core.record import State
from simcoll.core.trace import ASYNCHRONOUS, AWAITED, ON_DEVICE, SLOT
from simcoll.live.records import Records, current_rows, progress_of, shares_of, step_seconds

MS = 1_000_000


def records_of(*ranks, groups=1):
    """Each rank is a list of calls: group, sequence, begin and end in ms (None: open), and flags."""
    rows = []
    for calls in ranks:
        slots = np.zeros(len(calls), SLOT)
        for slot, (group, sequence, begin, end, flags) in zip(slots, calls, strict=True):
            slot["group"], slot["sequence"], slot["flags"] = group, sequence, flags
            slot["scheduled_ns"] = slot["started_ns"] = begin * MS
            slot["finished_ns"] = 0 if end is None else end * MS
            slot["state"] = State.STARTED if end is None else State.COMPLETED
        rows.append(slots)
    lengths = [len(slots) for slots in rows]
    slots = np.concatenate(rows)
    return Records(
        ranks=range(len(rows)),
        slots=slots,
        rank=np.repeat(np.arange(len(rows)), lengths),
        group=slots["group"].astype(np.int64),
        bounds=np.concatenate([[0], np.cumsum(lengths)]),
        whole=np.ones(len(rows), bool),
    )


def steps(begins, ends, flags=AWAITED):
    return [(0, number + 1, begin, end, flags) for number, (begin, end) in enumerate(zip(begins, ends, strict=True))]


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


def test_a_collective_of_which_a_member_is_missing_tells_nothing():
    records = records_of(steps([10, 110], [100, 200]), steps([90, 190], [100, 200]))
    shares = shares_of(records, np.array([3]))
    assert np.isnan(shares.waiting).all()


def test_progress_counts_what_was_made_and_what_has_ended():
    records = records_of(
        [(0, 1, 10, 20, 0), (1, 1, 20, 30, 0), (0, 2, 30, None, AWAITED)], [(0, 1, 10, 20, 0), (0, 2, 25, 40, 0)]
    )
    progress = progress_of(records)
    found = zip(*(one.tolist() for one in (progress.group, progress.rank, progress.made, progress.done)), strict=True)
    assert sorted(found) == [(0, 0, 2, 1), (0, 1, 2, 2), (1, 0, 1, 1)]


def test_steps_are_the_calls_that_repeat():
    calls = [(number % 3, number // 3 + 1, 10 * number, 10 * number + 5, 0) for number in range(30)]
    late = [(group, sequence, 2 * begin, 2 * end, flags) for group, sequence, begin, end, flags in calls[1:]]
    once = [(number, 1, 10 * number, 10 * number + 5, 0) for number in range(9)]
    found = step_seconds(records_of(calls, late, once, []))
    assert found[:2] == pytest.approx([0.030, 0.060])
    assert np.isnan(found[2:]).all()


def test_a_rank_is_where_it_waits_or_else_at_its_last_call():
    records = records_of(
        [(0, 1, 10, None, ASYNCHRONOUS | AWAITED), (0, 2, 20, None, ASYNCHRONOUS)],
        [(0, 1, 10, None, ASYNCHRONOUS), (0, 2, 20, None, ASYNCHRONOUS)],
        [],
    )
    assert current_rows(records).tolist() == [0, 3, -1]


def test_a_pause_is_between_two_calls_of_one_rank():
    records = records_of(steps([10, 40], [20, 50]), steps([9000, 9010], [9005, 9015]))
    assert records.longest_pause() == pytest.approx(0.030)
    assert records.changed_ns() == 9015 * MS
