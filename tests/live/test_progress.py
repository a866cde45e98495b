"""The progress of groups, the place of ranks, and steps, by records whose times are known."""

import numpy as np
import pytest

from simcoll.core.trace import ASYNCHRONOUS, AWAITED, HANDED_ON, ON_DEVICE
from simcoll.live.progress import current_rows, progress_of, step_seconds
from tests.live.test_records import records_of


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


def test_a_burst_of_alike_calls_is_one_step():
    begins = [100 * step + number for step in range(8) for number in range(3)]
    flags = ASYNCHRONOUS | AWAITED
    records = records_of([(0, at + 1, begin, begin + 50, flags) for at, begin in enumerate(begins)])
    records.slots["wait_us"] = [1000 * (40 - begin % 100) for begin in begins]
    assert step_seconds(records) == pytest.approx([0.1])


def test_a_rank_is_where_it_waits_or_else_at_its_last_call():
    records = records_of(
        [(0, 1, 10, None, ASYNCHRONOUS | AWAITED), (0, 2, 20, None, ASYNCHRONOUS)],
        [(0, 1, 10, None, ASYNCHRONOUS), (0, 2, 20, None, ASYNCHRONOUS)],
        [],
    )
    rows, waits = current_rows(records, np.zeros(3, np.bool_))
    assert rows.tolist() == [0, 3, -1]
    assert waits.tolist() == [True, False, False]


def test_a_rank_waits_for_its_future_while_it_sleeps_or_a_device_runs_the_call():
    taken = [(0, 1, 10, 20, HANDED_ON), (0, 2, 30, None, HANDED_ON), (0, 3, 40, None, HANDED_ON)]
    on_device = [(0, 1, 10, 20, HANDED_ON), (0, 2, 30, None, HANDED_ON | ON_DEVICE), (0, 3, 40, None, HANDED_ON)]
    rows, waits = current_rows(records_of(taken, taken, on_device), np.array([True, False, False]))
    assert rows.tolist() == [1, 5, 7]
    assert waits.tolist() == [True, False, True]
