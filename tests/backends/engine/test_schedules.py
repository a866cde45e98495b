"""Schedules: what is decided otherwise than by default, written, read and decided again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simcoll.backends.engine.schedules import (
    Decision,
    InOrder,
    Random,
    RecordedSchedule,
    ReplayedSchedule,
    schedule_of,
    schedule_text,
)
from simcoll.errors import ConfigurationError

SCHEDULES = st.dictionaries(st.integers(0, 10**6), st.integers(1, 1000))


@given(SCHEDULES)
def test_a_schedule_is_read_as_it_was_written(schedule: dict[int, int]) -> None:
    assert schedule_of(schedule_text(schedule)) == schedule


@pytest.mark.parametrize("text", ["1", "1:", ":1", "a:1", "1:b", "-1:2", "1:2;3:4", "1:2,,3:4", "1:²", "1:9999999999"])
def test_what_is_no_schedule_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="expected decision:option"):
        schedule_of(text)


def test_no_schedule_is_the_default_order() -> None:
    assert schedule_of(" ") == {}
    assert schedule_text({}) == ""


@given(st.integers(), st.lists(st.tuples(st.sampled_from(Decision), st.integers(2, 9)), max_size=60))
def test_what_was_recorded_is_decided_again(seed: int, asked: list[tuple[Decision, int]]) -> None:
    first = RecordedSchedule(Random(seed))
    decided = [first.choose(*question) for question in asked]
    again = RecordedSchedule(ReplayedSchedule(first.deviations))
    assert [again.choose(*question) for question in asked] == decided
    assert again.deviations == first.deviations
    assert again.made == first.made == len(asked)


@given(st.integers(), st.integers(2, 5))
def test_options_are_there(seed: int, options: int) -> None:
    choices = Random(seed)
    assert all(0 <= choices.choose(decision, options) < options for decision in Decision for _ in range(20))


def test_an_option_that_is_not_there_counts_as_the_first() -> None:
    recorded = RecordedSchedule(ReplayedSchedule({0: 7}))
    assert recorded.choose(Decision.TURN, 3) == 0
    assert recorded.deviations == {}


@given(st.integers(), st.integers(0, 3))
def test_preemptions_are_bounded(seed: int, most: int) -> None:
    choices = Random(seed, preemptions=most, horizon=40)
    decided = [choices.choose(Decision.PREEMPTION, 4) for _ in range(100)]
    assert sum(option > 0 for option in decided) == most


def test_the_default_order_preempts_nobody() -> None:
    assert not InOrder().preempts
    assert not RecordedSchedule(InOrder()).preempts
    assert RecordedSchedule(ReplayedSchedule({})).preempts
