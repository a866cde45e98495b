"""Schedules: bugs that depend on the order are found, made small, and happen again; correct programs never fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from simcoll.backends.engine.schedules import schedule_of
from simcoll.backends.simulated import simulate
from simcoll.backends.simulated.comm import Comm
from simcoll.errors import ConfigurationError
from simcoll.simulation.explore import explore
from tests.support.seeds import drawn

Program = Callable[[Any], object]


def number(value: float = 0.0) -> Any:
    return np.full(1, value, np.float64)


def stolen(comm: Comm) -> None:
    """A receive from anybody may take the message for which the next one waits by name."""
    if comm.rank:
        comm.send(number(comm.rank), 0)
        return
    comm.recv(number())
    comm.recv(number(), 2)


def mixed_up(comm: Comm) -> float:
    """Who comes first is taken for rank 1."""
    if comm.rank:
        comm.send(number(comm.rank), 0)
        return 0.0
    first, second = number(), number()
    comm.recv(first)
    comm.recv(second)
    assert first[0] == 1, "rank 1 came second"
    return float(first[0])


def two_groups(comm: Comm) -> None:
    """A rank that finds a message uses its groups in the other order."""
    one, other = comm.new_group([0, 1]), comm.new_group([0, 1])
    if comm.rank == 2:
        comm.send(number(), 0, 7)
        return
    assert one is not None
    assert other is not None
    groups = [one, other]
    if comm.rank == 0:
        request = comm.irecv(number(), 2, 7)
        if not request.is_completed():
            groups.reverse()
        request.wait()
    for group in groups:
        group.barrier()


def relies_on_buffers(comm: Comm) -> None:
    """Both send before they receive."""
    comm.send(number(), 1 - comm.rank)
    comm.recv(number(), 1 - comm.rank)


def polls(comm: Comm) -> None:
    """Who sees the call ended at once skips the barrier that the others come to."""
    request = comm.all_reduce(number(), async_op=True)
    assert request is not None
    seen = request.is_completed()
    request.wait()
    if comm.rank or not seen:
        comm.barrier()


def tokens(comm: Comm) -> None:
    """Two ranks take two locks, each kept by a rank that gives them out, in opposite orders."""
    if comm.rank >= 2:
        for _ in range(2):
            holder = comm.recv(number(), tag=1)
            comm.send(number(), holder, 2)
            comm.recv(number(), holder, 3)
        return
    first, second = (2, 3) if comm.rank == 0 else (3, 2)
    for lock in (first, second):
        comm.send(number(), lock, 1)
        comm.recv(number(), lock, 2)
    for lock in (second, first):
        comm.send(number(), lock, 3)


PLANTED: dict[str, tuple[Program, int, str]] = {
    "a receive from anybody steals": (stolen, 3, "synchronous"),
    "who comes first": (mixed_up, 3, "synchronous"),
    "two groups": (two_groups, 3, "synchronous"),
    "a program that relies on buffers": (relies_on_buffers, 2, "either"),
    "polling": (polls, 2, "synchronous"),
    "two locks": (tokens, 4, "synchronous"),
}


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_found_and_its_schedule_replays_it(bug: str) -> None:
    program, size, sends = PLANTED[bug]
    found = explore(program, size, 100, sends=sends)
    assert found.failing is not None
    assert 0 < found.failed <= found.tried == 100
    again = simulate(program, size, schedule=found.schedule, sends=sends)
    assert not again.ok
    assert again.schedule == found.schedule
    assert [repr(error) for error in again.exceptions.values()] == [
        repr(error) for error in found.failing.exceptions.values()
    ]
    assert again.findings == found.failing.findings
    assert [str(trace.slots.tobytes()) for trace in again.traces] == [
        str(trace.slots.tobytes()) for trace in found.failing.traces
    ]


@pytest.mark.parametrize("bug", PLANTED)
def test_the_schedule_that_is_shown_has_no_decision_too_many(bug: str) -> None:
    program, size, sends = PLANTED[bug]
    found = explore(program, size, 100, sends=sends)
    assert found.failing is not None
    schedule = schedule_of(found.schedule or "")
    assert len(schedule) <= 2
    for decision in schedule:
        fewer = ",".join(f"{at}:{option}" for at, option in schedule.items() if at != decision)
        spared = simulate(program, size, schedule=fewer, sends=sends)
        assert spared.ok or [one.code for one in spared.findings] != [one.code for one in found.failing.findings]


# What is correct however it goes.


def summed_in_any_order(comm: Comm) -> None:
    if comm.rank:
        comm.send(number(comm.rank), 0)
        return
    total, got = 0.0, number()
    for _ in range(comm.size - 1):
        comm.recv(got)
        total += got[0]
    assert total == sum(range(comm.size))


def master_and_workers(comm: Comm) -> None:
    """Tasks go to whoever asks; a task of 0 is the last."""
    if comm.rank:
        while True:
            comm.send(number(comm.rank), 0, 1)
            task = number()
            comm.recv(task, 0, 2)
            if task[0] == 0:
                return
    for task in [1, 2, 3, 4, 5] + [0] * (comm.size - 1):
        worker = comm.recv(number(), tag=1)
        comm.send(number(task), worker, 2)


def pipeline(comm: Comm) -> None:
    for step in range(4):
        value = number(step)
        if comm.rank:
            comm.recv(value, comm.rank - 1)
        if comm.rank < comm.size - 1:
            comm.send(value, comm.rank + 1)
        assert value[0] == step


def groups_in_opposite_orders(comm: Comm) -> None:
    groups = [comm.new_group([0, 1]), comm.new_group([0, 1])]
    if comm.rank < 2:
        order = groups if comm.rank else groups[::-1]
        works = [group.all_reduce(number(1), async_op=True) for group in order if group is not None]
        for work in works:
            assert work is not None
            work.wait()


def asks_until_it_has_ended(comm: Comm) -> None:
    work = comm.all_reduce(number(1), async_op=True)
    assert work is not None
    while not work.is_completed():
        pass
    comm.barrier()


CORRECT = (summed_in_any_order, master_and_workers, pipeline, groups_in_opposite_orders, asks_until_it_has_ended)


@pytest.mark.slow
@pytest.mark.parametrize("sends", ["synchronous", "buffered", "either"])
@pytest.mark.parametrize("program", CORRECT, ids=lambda program: program.__name__)
def test_a_correct_program_never_fails(program: Program, sends: str) -> None:
    schedules = drawn(300, 10)
    found = explore(program, 4, schedules, sends=sends)
    assert found.failing is None
    assert found.schedule is None
    assert (found.tried, found.failed) == (schedules, 0)


def test_progress_is_told() -> None:
    told: list[int] = []
    explore(pipeline, 2, 5, progress=told.append)
    assert told == [1, 2, 3, 4, 5]


def test_another_seed_tries_other_schedules() -> None:
    failed = {explore(stolen, 3, 20, seed=seed).failed for seed in range(6)}
    assert len(failed) > 1
    assert explore(stolen, 3, 20, seed=4).failed == explore(stolen, 3, 20, seed=4).failed


def test_a_program_that_always_fails_needs_no_schedule() -> None:
    found = explore(lambda comm: 1 / 0, 2, 10)
    assert (found.tried, found.failed, found.schedule) == (10, 10, "")


def test_there_is_a_schedule_to_try() -> None:
    with pytest.raises(ConfigurationError, match="at least 1 schedule, got 0"):
        explore(pipeline, 2, 0)


def written(outcome: Any) -> list[object]:
    """All that the ranks have written down."""
    return [(repr(trace.events), trace.signatures, trace.sources, trace.slots.tobytes()) for trace in outcome.traces]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in (1, 2))])
def test_64_ranks_do_the_same_every_time(seed: int) -> None:
    def program(comm: Comm) -> None:
        master_and_workers(comm)
        asks_until_it_has_ended(comm)
        summed_in_any_order(comm)

    first = simulate(program, 64, seed=seed)
    assert first.ok
    assert written(simulate(program, 64, seed=seed)) == written(first)
    assert written(simulate(program, 64, schedule=first.schedule)) == written(first)
