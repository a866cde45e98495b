"""Which calls are checked: alike on all ranks, within a budget, and ever fewer of a job that runs for long."""

from __future__ import annotations

import itertools

import pytest

from simcoll.errors import ConfigurationError
from simcoll.values.choice import Choice, budget_wanted, values_wanted


def test_what_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SIMCOLL_VALUES", raising=False)
    assert values_wanted() == "off"
    monkeypatch.setenv("SIMCOLL_VALUES", "sample")
    assert values_wanted() == "sample"
    assert values_wanted("all") == "all"
    with pytest.raises(ConfigurationError, match="expected one of off, sample, all"):
        values_wanted("some")


@pytest.mark.parametrize(("text", "budget"), [("", 0.01), ("0.02", 0.02), ("5%", 0.05)])
def test_budgets(text: str, budget: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIMCOLL_VALUES_BUDGET", text)
    assert budget_wanted() == pytest.approx(budget)


@pytest.mark.parametrize("text", ["0", "-1", "200%", "much", "nan"])
def test_budgets_that_are_none(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIMCOLL_VALUES_BUDGET", text)
    with pytest.raises(ConfigurationError, match="SIMCOLL_VALUES_BUDGET"):
        budget_wanted()


def test_all_takes_every_call_at_first_and_ever_fewer_later() -> None:
    choice = Choice("all")
    assert all(choice.takes(sequence) for sequence in range(1, 1 << 14))
    taken = sum(choice.takes(sequence) for sequence in range(1 << 18, 1 << 19))
    assert 0.8 * (1 << 13) < taken * 1.0 < 1.2 * (1 << 14)


def taken(choice: Choice, cost: float, clock: list[float], calls: int = 4000) -> set[int]:
    found = set()
    for sequence in range(1, calls + 1):
        clock[0] += 0.001
        if choice.takes(sequence):
            found.add(sequence)
            choice.spent(cost)
            clock[0] += cost
    return found


def test_a_sample_stays_within_its_budget_and_looks_into_a_small_model_often() -> None:
    clock = [0.0]
    cheap = taken(Choice("sample", 0.01, lambda: clock[0]), 0.00001, clock)
    assert len([one for one in cheap if one <= 400]) >= 10
    clock = [0.0]
    dear = taken(Choice("sample", 0.01, lambda: clock[0]), 0.02, clock, 40_000)
    assert 0 < len(dear) * 0.02 <= 0.02 * clock[0]


def test_ranks_that_spend_differently_take_the_same_important_calls() -> None:
    one, other = [0.0], [0.0]
    fast = taken(Choice("sample", 0.01, lambda: one[0]), 0.0001, one, 20_000)
    slow = taken(Choice("sample", 0.01, lambda: other[0]), 0.001, other, 20_000)
    assert len(slow) < len(fast)
    assert len(slow & fast) > 0.8 * len(slow)


@pytest.mark.parametrize("steps", [1, 4])
def test_a_sample_without_time_takes_one_of_each_64_steps_alike_on_all_ranks(steps: int) -> None:
    taken = []
    for cost in (1.0, 100.0):
        now = [0.0]
        choice = Choice("sample", 0.01, lambda now=now: now[0])  # type: ignore[misc]
        mine = set()
        for number in range(64 * 200 // steps):
            now[0] += 1.0
            if choice.takes_step(number, steps):
                mine.add(number)
                choice.spent(cost)
        taken.append(mine)
    both = sorted(taken[0] & taken[1])
    assert max(after - before for before, after in itertools.pairwise(both)) * steps < 128
    assert len(taken[1]) < 1.5 * 200


def test_a_sample_that_begins_too_dear_comes_down_at_once_and_no_further() -> None:
    clock = [0.0]
    numbers = taken(Choice("sample", 0.01, lambda: clock[0]), 0.01, clock, 100_000)

    def share(after: int, until: int) -> float:
        return len([one for one in numbers if after < one <= until]) * 0.01 / ((until - after) * 0.001)

    assert share(0, 32) > 0.1
    assert share(32, 500) <= 0.01
    assert 0.002 <= share(2_000, 100_000) <= 0.01


@pytest.mark.parametrize("values", ["sample", "all"])
def test_numbers_that_are_not_asked_for_would_not_be_taken(values: str) -> None:
    for first in (1, 1 << 14, 1 << 20):
        each, some = (Choice(values, 0.01, lambda: 0.0) for _ in range(2))
        asked, found = first - 1, set()
        while asked < first + 3000:
            before, asked = asked, some.next(asked)
            if some.takes(asked, asked - before):
                found.add(asked)
        assert found == {number for number in range(first, asked + 1) if each.takes(number)}


def test_a_choice_that_has_stopped_asks_for_no_number() -> None:
    choice = Choice("all")
    assert choice.next(1) == 2
    choice.stop()
    assert choice.next(1) > 1 << 60


def test_one_dear_call_is_enough_to_take_fewer() -> None:
    clock = [0.0]
    choice = Choice("sample", 0.01, lambda: clock[0])
    first = choice.next(0)
    clock[0] = 1.0
    assert choice.takes(first)
    with choice.counted():
        clock[0] += 0.5
    taken = [number for number in range(first + 1, first + 1000) if choice.takes(number)]
    assert len(taken) < 1000 // 256


def test_steps_that_are_always_taken_count_among_those_that_show_what_one_costs() -> None:
    clock = [0.0]
    choice = Choice("sample", 0.01, lambda: clock[0])
    for number in range(8):
        clock[0] += 1.0
        assert choice.takes_step(number, always=True)
        with choice.counted():
            clock[0] += 0.06
    # One of 8 would keep to three quarters of a hundredth.
    assert 4 < len([number for number in range(8, 136) if choice.takes_step(number)]) < 40
