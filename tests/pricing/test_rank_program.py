"""What a rank computed and where it waited, as its record tells of it, and where it does not."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simcoll.core.record import Record, State
from simcoll.core.trace import ASYNCHRONOUS, HANDED_ON
from simcoll.pricing.job import recorded_job
from simcoll.pricing.rank_program import BLOCK, LAUNCH, WAIT, Programs, _first_after
from tests.support.native import KINDS, parts
from tests.support.timed import BEGIN, Made, call, timed, world
from tests.support.traces import trace_of


def program(*made):
    return recorded_job(timed([world(1)], {0: list(made)})).programs[0]


def shown(found):
    return list(zip(found.kind.tolist(), found.instance.tolist(), found.gap.round(6).tolist(), strict=True))


def test_blocking_calls_leave_the_time_between_them():
    found = program(Made("0", call(), 0.5), Made("0", call(), 0.02), Made("0", call(), 0.03))
    assert shown(found) == [(BLOCK, 0, 0.0), (BLOCK, 1, 0.02), (BLOCK, 2, 0.03)]


def test_a_wait_that_is_seen_stands_behind_the_compute_before_the_next_call():
    found = program(Made("0", call(), asynchronous=True, waits=0.01), Made("0", call(), 0.02))
    assert shown(found) == [(LAUNCH, 0, 0.0), (WAIT, 0, 0.02), (BLOCK, 1, 0.0)]


def test_the_time_in_a_wait_whose_begin_was_written_down_is_no_compute():
    """Two calls that overlap compute of 10 ms, and 5 ms of which the rank then waits; 20 ms of compute follow."""
    made = [Made("0", call(), asynchronous=True, waits=0.015), Made("0", call(), 0.001, asynchronous=True, waits=0.014)]
    traces = timed([world(1)], {0: [*made, Made("0", call(), 0.034)]})
    traces[0].slots["wait_us"] = [10_000, 14_000, 0]
    found = recorded_job(traces).programs[0]
    assert shown(found) == [
        (LAUNCH, 0, 0.0),
        (LAUNCH, 1, 0.001),
        (WAIT, 0, 0.009),
        (WAIT, 1, 0.0),
        (BLOCK, 2, 0.02),
    ]


def test_a_burst_of_alike_calls_is_one_step():
    step = [Made("0", call(), gap, asynchronous=True, waits=0.009 - gap) for gap in (0.05, 0.001, 0.001)]
    traces = timed([world(1)], {0: step * 4})
    traces[0].slots["wait_us"] = [5000, 5000, 5000] * 4
    steps = recorded_job(traces).steps[0]
    assert (steps.period, steps.count) == (3, 4)


def test_a_call_that_another_one_overtakes_is_waited_for_when_it_has_ended():
    found = program(Made("0", call(), asynchronous=True, waits=0.025), Made("0", call(), 0.01), Made("0", call(), 0.02))
    assert shown(found) == [(LAUNCH, 0, 0.0), (BLOCK, 1, 0.01), (WAIT, 0, 0.02), (BLOCK, 2, 0.0)]


def test_a_wait_that_nobody_saw_stands_before_the_next_call_that_tells():
    found = program(
        Made("0", call(), asynchronous=True),
        Made("0", call(), 0.01, asynchronous=True, line=2),
        Made("0", call(), 0.02, line=3),
    )
    assert shown(found) == [
        (LAUNCH, 0, 0.0),
        (LAUNCH, 1, 0.01),
        (WAIT, 0, 0.0),
        (WAIT, 1, 0.0),
        (BLOCK, 2, 0.02),
    ]


def test_buckets_that_were_handed_on_are_waited_for_at_the_end_of_the_step():
    step = [Made("0", call(size=size), gap, asynchronous=True, waits=0.001) for size, gap in ((8, 0.05), (16, 0.01))]
    traces = timed([world(1)], {0: step * 4})
    traces[0].slots["flags"] |= HANDED_ON
    job = recorded_job(traces)
    assert (job.steps[0].first, job.steps[0].period) == (0, 2)
    found = job.programs[0]
    assert found.kind.tolist() == [LAUNCH, LAUNCH, WAIT, WAIT] * 4
    assert found.gap.round(6).tolist() == [0.0, 0.01, 0.0, 0.0, *[0.05, 0.01, 0.0, 0.0] * 3]


def test_a_synchronous_call_that_had_not_ended_when_the_next_was_made_did_not_block():
    # As Flight Recorder has it, which says of no call that it is asynchronous.
    records = [
        Record("0", 1, call(), scheduled_ns=BEGIN, finished_ns=BEGIN + 3_000_000, awaited=True),
        Record("0", 2, call(), scheduled_ns=BEGIN + 1_000_000, finished_ns=BEGIN + 4_000_000, awaited=True),
    ]
    found = recorded_job([trace_of(0, 1, [world(1)], records)]).programs[0]
    assert found.kind.tolist()[0] == LAUNCH
    assert found.gap.sum() == pytest.approx(0.001)


def test_a_device_comes_to_its_calls_long_after_the_host_has_queued_them():
    records = [
        Record(
            "0",
            number,
            call(),
            scheduled_ns=BEGIN + number,
            started_ns=BEGIN + 10_000_000 * number,
            finished_ns=BEGIN + 10_000_000 * number + 3_000_000,
            awaited=True,
            on_device=True,
            state=State.COMPLETED,
        )
        for number in (1, 2, 3)
    ]
    found = recorded_job([trace_of(0, 1, [world(1)], records)]).programs[0]
    assert shown(found) == [(BLOCK, 0, 0.0), (BLOCK, 1, 0.007), (BLOCK, 2, 0.007)]


def test_records_without_times_have_no_compute():
    traces = timed([world(1)], {0: [Made("0", call(), 1.0)] * 3})
    for name in ("scheduled_ns", "started_ns", "finished_ns"):
        traces[0].slots[name] = 0
    found = recorded_job(traces).programs[0]
    assert not found.seen
    assert np.all(found.gap == 0.0)


def test_ranks_share_what_they_do_alike_and_nothing_else():
    """Of random ranks each has the program that it has alone, to the bit, and equal ones have one array."""
    random = np.random.default_rng(5)

    def made(shape):
        gaps = [0.01 if place % 4 == 0 else 0.001 for place in range(len(shape))]
        return [Made("0", call(), gap, asynchronous=free, waits=0.02) for gap, free in zip(gaps, shape, strict=True)]

    shapes = [random.integers(4, size=12).astype(bool).tolist() for _ in range(3)]
    traces = timed([world(600)], {rank: made(shapes[rank // 100 % 3]) for rank in range(600)})
    waits = random.integers(8, size=12) * 1000
    for trace in traces:
        # One wait of each rank begins sooner or later than those of the others, often in the instant of another's.
        waits[random.integers(12)] = random.integers(8) * 1000
        trace.slots["wait_us"] = np.where((trace.slots["flags"] & ASYNCHRONOUS) != 0, waits, 0)
    own, together = np.arange(12, dtype=np.int32), Programs()
    found = [together.of(trace, own, None) for trace in traces]
    alone = [Programs().of(trace, own, None) for trace in traces]
    for one, other in zip(found, alone, strict=True):
        assert shown(one) == shown(other)
        assert np.array_equal(one.gap, other.gap)
        assert np.array_equal(one.place, other.place)
    kinds = {one.kind.tobytes() for one in alone}
    assert len(kinds) < len({id(one.kind) for one in found}) < len(found)
    same = timed([world(2)], {rank: made(shapes[0]) for rank in range(2)})
    same[1].slots[:] = same[0].slots
    first, second = (together.of(trace, own, None) for trace in same)
    assert first.kind is second.kind
    assert first.instance is second.instance
    assert first.place is second.place


@pytest.mark.parametrize("kind", KINDS)
def test_ranks_of_any_record_have_the_program_that_they_have_alone(kind):
    """Flags, states and times of every kind, mostly those of the rank before."""
    choose = random.Random(11)
    own, together, last = np.arange(6, dtype=np.int32), Programs(), None
    made = [Made("0", call(), 0.001, asynchronous=place % 3 > 0, waits=0.002) for place in range(6)]
    [trace] = timed([world(1)], {0: made})
    before, changed = trace.slots.copy(), 0
    with parts(kind):
        for number in range(800):
            if number % 20 == 0:
                trace.slots[:] = before
            elif choose.random() < 0.5:
                place, times = choose.randrange(6), [0, 1, BEGIN, BEGIN + choose.randrange(12) * 1000, (1 << 64) - 1]
                kinds = {"flags": [0, 1, 3, 7, 17, 19], "state": [State.STARTED, *[State.COMPLETED] * 3]}
                kinds |= dict.fromkeys(("scheduled_ns", "started_ns", "finished_ns"), times) | {"wait_us": [*range(8)]}
                name = choose.choice([*kinds])
                trace.slots[name][place] = choose.choice(kinds[name])
            else:
                for name in ("scheduled_ns", "started_ns", "finished_ns"):
                    known = (trace.slots[name] > 1) & (trace.slots[name] < 1 << 63)
                    trace.slots[name] += np.where(known, np.uint64(choose.randrange(3)), np.uint64(0))
            found, alone = together.of(trace, own, None), Programs().of(trace, own, None)
            assert shown(found) == shown(alone)
            assert np.array_equal(found.gap, alone.gap)
            assert np.array_equal(found.place, alone.place)
            assert found.seen == alone.seen
            changed += last is not None and found.kind is not last.kind
            last = found
    assert 100 < changed < 600


NUMBERS = st.lists(st.integers(0, 9), max_size=8)


@given(NUMBERS, NUMBERS, NUMBERS)
def test_a_guess_of_where_waits_stand_changes_nothing(times, asked, guess):
    made, wanted = np.array(sorted(times), np.int64), np.array(asked, np.int64)
    places = np.searchsorted(made, wanted)
    assert _first_after(made, wanted, np.array(guess, np.int64)).tolist() == places.tolist()
    assert _first_after(made, wanted, places) is places
