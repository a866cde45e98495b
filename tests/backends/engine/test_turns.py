"""Ranks take turns: one at a time, in the same order every time, and nobody is left hanging."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from simcoll.backends.engine.parking import FreeThreads, ParkingPlace, StuckError, WaitTimeoutError
from simcoll.backends.engine.schedules import Random
from simcoll.backends.engine.turns import Turns
from simcoll.errors import ConfigurationError


def test_one_rank_runs_at_a_time_and_each_to_its_end() -> None:
    turns, running, seen = Turns(8), [], []

    def body(rank: int) -> None:
        running.append(rank)
        assert running == [rank]
        seen.append(rank)
        running.remove(rank)

    turns.run(body)
    assert seen == list(range(8))


def handed_round(choices: Random | None) -> list[int]:
    """Who came when, where each waits for the one before it."""
    turns, order = Turns(6, choices), []
    places: dict[int, ParkingPlace] = {}

    def body(rank: int) -> None:
        for _ in range(3):
            order.append(rank)
            with turns.lock:
                places[rank] = place = turns.place(rank)
                if len(places) == 6:
                    for other in list(places.values()):
                        turns.wake(other)
                    places.clear()
            turns.wait(place)

    turns.run(body)
    return order


def test_the_order_is_that_of_coming_or_comes_from_the_seed() -> None:
    assert handed_round(None)[:6] == list(range(6))
    assert handed_round(None) == handed_round(None)
    assert handed_round(Random(3)) == handed_round(Random(3))
    assert len({tuple(handed_round(Random(seed))) for seed in range(10)}) > 5


class StillClock:
    """A clock that only waits move."""

    def __init__(self, size: int) -> None:
        self.times = [0.0] * size

    def now(self, rank: int) -> float:
        return self.times[rank]

    def reach(self, rank: int, seconds: float) -> None:
        self.times[rank] = max(self.times[rank], seconds)


def test_waits_end_in_the_order_of_their_times_where_nobody_can_go_on() -> None:
    clock, ended = StillClock(3), []
    turns = Turns(3, clock=clock)

    def body(rank: int) -> None:
        with turns.lock:
            place = turns.place(rank)
        with pytest.raises(WaitTimeoutError if rank else StuckError):
            turns.wait(place, (60.0, 20.0, 10.0)[rank])
        ended.append(rank)

    turns.run(body)
    # What would wait for longer than stuck ranks are left to is stuck.
    assert ended == [2, 1, 0]
    assert clock.times == [0.0, 20.0, 10.0]


def test_a_pause_of_the_program_lasts_as_long_as_it_says() -> None:
    clock = StillClock(1)
    turns = Turns(1, clock=clock)

    def body(rank: int) -> None:
        with turns.lock:
            place = turns.place(rank)
        with pytest.raises(WaitTimeoutError):
            turns.pass_time(place, 3600.0)

    turns.run(body)
    assert clock.times == [3600.0]


def test_who_waits_for_nobody_is_told_so() -> None:
    turns, told = Turns(3), []

    def body(rank: int) -> None:
        with turns.lock:
            place = turns.place(rank)
        with pytest.raises(StuckError, match=f"rank {rank} waits"):
            turns.wait(place)
        told.append(rank)

    turns.run(body)
    assert told == [0, 1, 2]


def test_the_world_is_told_before_the_ranks_are() -> None:
    turns, told = Turns(1), []
    turns.on_stuck = lambda: told.append("world")

    def body(rank: int) -> None:
        with turns.lock:
            place = turns.place(rank)
        with pytest.raises(StuckError):
            turns.wait(place)
        told.append("rank")

    turns.run(body)
    assert told == ["world", "rank"]


def test_what_the_world_wakes_at_the_last_moment_is_not_stuck() -> None:
    turns, ended = Turns(1), []
    places: list[ParkingPlace] = []
    turns.on_stuck = lambda: turns.wake(places[0])

    def body(rank: int) -> None:
        with turns.lock:
            places.append(turns.place(rank))
        turns.wait(places[0])
        ended.append(rank)

    turns.run(body)
    assert ended == [0]


def in_a_thread_of(turns: Turns, rank: int, work: Callable[[], None]) -> threading.Thread:
    def run() -> None:
        with turns.adopted(rank):
            work()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_a_thread_of_a_rank_may_wait_and_be_woken() -> None:
    turns, places, ended = Turns(2), {}, []

    def waits() -> None:
        with turns.lock:
            places["thread"] = turns.place(0)
        turns.wait(places["thread"])
        ended.append("thread")

    def body(rank: int) -> None:
        if rank == 0:
            with turns.lock:
                places["main"] = turns.place(0)
            thread = in_a_thread_of(turns, 0, waits)
            turns.wait(places["main"])
            thread.join()
        else:
            while "thread" not in places:
                time.sleep(0.001)
            with turns.lock:
                turns.wake(places["main"])
                turns.wake(places["thread"])
        ended.append(rank)

    turns.run(body)
    assert sorted(map(str, ended)) == ["0", "1", "thread"]


def test_a_rank_whose_thread_runs_is_not_stuck() -> None:
    turns, ended = Turns(1), []
    places: list[ParkingPlace] = []

    def works_then_wakes() -> None:
        time.sleep(0.05)
        with turns.lock:
            turns.wake(places[0])

    def body(rank: int) -> None:
        with turns.lock:
            places.append(turns.place(rank))
        in_a_thread_of(turns, rank, works_then_wakes)
        turns.wait(places[0])
        ended.append(rank)

    turns.run(body)
    assert ended == [0]


def test_a_preempted_rank_goes_on_later() -> None:
    turns, order = Turns(3, Random(1)), []

    def body(rank: int) -> None:
        for step in range(5):
            order.append((rank, step))
            turns.pause(rank)

    turns.run(body)
    assert sorted(order) == [(rank, step) for rank in range(3) for step in range(5)]
    assert order != sorted(order)


def test_giving_way_lets_the_others_go_first() -> None:
    turns, order = Turns(3), []

    def body(rank: int) -> None:
        if rank == 0:
            assert turns.yield_turn(rank)
        order.append(rank)
        if rank == 0:
            assert not turns.yield_turn(rank)

    turns.run(body)
    assert order == [1, 2, 0]


# Threads that nobody holds back.


def test_free_threads_wait_until_they_are_woken() -> None:
    free = FreeThreads()
    place = free.place(0)
    threading.Timer(0.02, free.wake, (place,)).start()
    free.wait(place)
    assert place.woken


def test_free_threads_give_up_after_their_timeout() -> None:
    free = FreeThreads()
    with pytest.raises(StuckError, match=r"rank 3 has waited for 0\.01 s"):
        free.wait(free.place(3), 0.01)


def test_free_threads_may_be_woken_twice_and_before_they_wait() -> None:
    free = FreeThreads()
    place = free.place(0)
    free.wake(place)
    free.wake(place)
    free.wait(place, 1e9)


def test_a_rank_without_a_thread_is_named_and_the_others_end(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks: list[threading.Thread] = []
    start = threading.Thread.start

    def limited(thread: threading.Thread) -> None:
        if thread.name == "rank 2":
            raise RuntimeError("can't start new thread")
        ranks.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    with pytest.raises(ConfigurationError, match="rank 2 of 4 has no thread"):
        Turns(4).run(lambda rank: None)
    assert not any(thread.is_alive() for thread in ranks)
