"""The table of the newest records, and records whose times are known."""

import numpy as np
import pytest

from simcoll.core.record import State
from simcoll.core.trace import AWAITED, SLOT
from simcoll.live.records import Records

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


@pytest.mark.parametrize(
    ("calls", "pause"),
    [
        (([10, 40], [9000, 9010]), 20),
        (([0, 500, 510, 520], [9000, 9200, 9510, 9520]), 310),
        (([0, 500, 510, 520], [9500, 9510, 9520]), 500),
        (([7], []), 0),
        (([], []), 0),
    ],
    ids=["recorded for a shorter time", "the rank that paused shortest", "no record before", "one call", "no call"],
)
def test_the_job_stood_no_longer_than_the_rank_that_paused_shortest(calls, pause):
    records = records_of(*(steps(begins, [begin + 5 for begin in begins]) for begins in calls))
    assert records.longest_pause() == pytest.approx(pause / 1000)


def test_the_newest_change_is_that_of_any_rank():
    records = records_of(steps([10, 40], [20, 50]), steps([9000, 9010], [9005, 9015]))
    assert records.changed_ns() == 9015 * MS


def test_recent_are_the_last_seconds_of_each_rank_and_a_few_records_at_least():
    quick, slow = range(0, 20_000, 50), range(0, 400_000, 4000)
    records = records_of(steps(quick, quick), steps(slow, slow), [], steps([1], [2]))
    recent = records.recent()
    assert np.diff(recent.bounds).tolist() == [101, 64, 0, 1]
    assert recent.slots["scheduled_ns"][[0, 101]].tolist() == [14_950 * MS, (100 - 64) * 4000 * MS]
    assert recent.rank.tolist() == np.repeat([0, 1, 2, 3], [101, 64, 0, 1]).tolist()
    few = records_of(steps(quick[:64], quick[:64]))
    assert few.recent() is few
