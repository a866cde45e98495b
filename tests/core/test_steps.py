"""Steps that a program marked: thinned marks, numbers at a time, the pace of the last ones, damage."""

from __future__ import annotations

import numpy as np
import pytest

from simcoll.core.record import Event
from simcoll.core.steps import MARKS, STEP, STEPS, StepMarks, StepNumber, ended_event, is_marked, mark_place

SECOND = 10**9


def marks(ended: int, *, counted: bool = True) -> StepMarks:
    """Those of a rank that ended a step each second."""
    events = [Event(STEP, number * SECOND, {"number": number}) for number in range(1, ended + 1) if is_marked(number)]
    found = StepMarks.of([*(ended_event(ended) if counted else ()), *events])
    assert found is not None
    return found


def test_marks_are_thinned_out() -> None:
    written = [number for number in range(1, 1_000_001) if is_marked(number)]
    assert written[:300] == [*range(1, 256), *range(256, 346, 2)]
    assert len(written) < 2_000


@pytest.mark.parametrize(
    ("time", "number"), [(0, 1), (1, 1), (SECOND, 2), (100 * SECOND + 5, 101), (254 * SECOND, 255)]
)
def test_number_of_the_step_at_a_time(time: int, number: int) -> None:
    assert marks(300).at(time) == StepNumber(number, exact=True)


def test_number_between_thinned_marks_is_about_right() -> None:
    for wanted in (1_001, 5_000, 9_998):
        found = marks(10_000).at(wanted * SECOND - SECOND // 2)
        assert abs(found.number - wanted) <= 1
        assert not found.exact


def test_last_call_is_in_the_step_behind_the_ended_ones() -> None:
    assert marks(1_001).at(1_001 * SECOND + 5, last=True) == StepNumber(1_002, exact=False)
    assert marks(1_001).at(1_000 * SECOND + 5) == StepNumber(1_001, exact=False)
    assert marks(12).at(13 * SECOND) == StepNumber(13, exact=True)
    assert str(StepNumber(1_002, exact=False)) == "about step 1,002"


def test_one_mark_and_a_counter_that_is_ahead_of_it() -> None:
    found = StepMarks.of([*ended_event(2), Event(STEP, SECOND, {"number": 1})])
    assert found is not None
    assert found.at(SECOND) == StepNumber(2, exact=False)


def test_pace_is_that_of_the_last_steps() -> None:
    assert marks(5_000).seconds == pytest.approx(1.0)
    assert marks(1).seconds is None


def test_count_of_the_marks_stands_in_where_the_reader_adds_none() -> None:
    assert marks(10, counted=False).ended == 10
    assert StepMarks.of([]) is None
    assert StepMarks.of([Event("exit", 5, {})]) is None


@pytest.mark.parametrize(
    "data",
    [{}, {"number": "7"}, {"number": -1}, {"number": 0}, {"number": 10**30}, {"number": None}, {"number": True}],
    ids=str,
)
def test_damaged_marks_are_passed_over(data: dict[str, object]) -> None:
    sound = Event(STEP, 5 * SECOND, {"number": 1})
    found = StepMarks.of([sound, Event(STEP, 6 * SECOND, data), Event(STEPS, 0, {"ended": 10**40})])
    assert found is not None
    assert found.numbers.tolist() == [1]
    assert StepMarks.of([Event(STEP, 10**40, {"number": 3})]) is None


def test_a_clock_that_is_set_back_costs_the_marks_of_that_time() -> None:
    events = [Event(STEP, time * SECOND, {"number": number}) for number, time in enumerate((5, 6, 2, 3, 8), 1)]
    found = StepMarks.of(events)
    assert found is not None
    assert (found.numbers.tolist(), found.ended) == ([1, 2, 5], 5)


def test_every_marked_step_has_a_place_of_its_own() -> None:
    marked = [step for step in range(1, 5_000) if is_marked(step)]
    assert [mark_place(step) for step in marked] == [*range(len(marked))]
    assert mark_place(1 << 42) == MARKS - 1
    assert is_marked(1 << 42)


def test_marks_at_their_places_are_those_of_events() -> None:
    ended = 1_001
    marked = [step for step in range(1, ended + 1) if is_marked(step)]
    times = np.zeros(MARKS, np.uint64)
    times[[mark_place(step) for step in marked]] = [step * SECOND for step in marked]
    found = StepMarks.of(ended_event(ended, StepMarks.at_places(times, ended)))
    expected = StepMarks.of([*ended_event(ended), *(Event(STEP, step * SECOND, {"number": step}) for step in marked)])
    assert found is not None
    assert expected is not None
    assert (found.ended, found.numbers.tolist()) == (expected.ended, expected.numbers.tolist())
    assert found.times.tolist() == expected.times.tolist()


def test_places_that_cannot_be_marks_are_passed_over() -> None:
    assert StepMarks.at_places(np.zeros(0, np.uint64), 7) is None
    assert StepMarks.at_places(np.zeros(MARKS, np.uint64), 7) is None
    # A time that cannot be one, and a clock that was set back.
    found = StepMarks.at_places(np.array([5, 2**64 - 1, 3, 0, 9], np.uint64), 2)
    assert found is not None
    assert (found.ended, found.numbers.tolist(), found.times.tolist()) == (5, [1, 5], [5, 9])
