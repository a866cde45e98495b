"""Virtual time: what a topology says that calls take, and nothing of this machine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import simcoll
from simcoll.backends.simulated import simulate
from simcoll.backends.simulated.comm import Comm
from simcoll.errors import ConfigurationError
from simcoll.verifier.findings.finding import Severity

TICK = 1e-6
"""What the making of a call takes."""


@pytest.fixture(scope="module")
def flat() -> Any:
    return simcoll.flat(ranks=8, bandwidth=50e9, latency=1e-6)


def numbers(count: int = 1 << 18) -> Any:
    return np.ones(count, np.float32)


def test_a_serial_program_takes_what_its_calls_are_estimated_at(flat: Any) -> None:
    def program(comm: Comm) -> None:
        array = numbers()
        comm.all_reduce(array)
        comm.broadcast(array)
        comm.all_gather_into_tensor(numbers(8 << 18), array)
        comm.barrier()

    sizes = {"all_reduce": 4 << 18, "broadcast": 4 << 18, "all_gather": 32 << 18, "barrier": 0}
    wanted = sum(simcoll.estimate(op, size, flat, ranks=tuple(range(8))).seconds for op, size in sizes.items())
    outcome = simulate(program, 8, flat)
    assert outcome.ok
    assert outcome.seconds == pytest.approx(wanted, abs=20 * TICK)


def test_groups_beside_each_other_take_no_longer_than_one(flat: Any) -> None:
    def program(comm: Comm) -> None:
        low, high = comm.new_group(range(4)), comm.new_group(range(4, 8))
        group = low or high
        assert group is not None
        group.all_reduce(numbers())

    # The members of a new group wait for each other, as in a barrier.
    calls = (("barrier", 0), ("all_reduce", 4 << 18))
    seconds = sum(simcoll.estimate(op, size, flat, ranks=(0, 1, 2, 3)).seconds for op, size in calls)
    assert simulate(program, 8, flat).seconds == pytest.approx(seconds, abs=20 * TICK)


def test_computing_overlaps_with_a_call_in_flight(flat: Any) -> None:
    seconds = simcoll.estimate("all_reduce", 4 << 18, flat, ranks=tuple(range(8))).seconds

    def program(comm: Comm) -> None:
        work = comm.all_reduce(numbers(), async_op=True)
        comm.compute(seconds / 2)
        assert work is not None
        work.wait()

    assert simulate(program, 8, flat).seconds == pytest.approx(seconds, abs=20 * TICK)


def test_calls_of_one_group_run_one_after_the_other(flat: Any) -> None:
    def program(comm: Comm) -> None:
        works = [comm.all_reduce(numbers(), async_op=True) for _ in range(3)]
        for work in works:
            assert work is not None
            work.wait()

    seconds = simcoll.estimate("all_reduce", 4 << 18, flat, ranks=tuple(range(8))).seconds
    assert simulate(program, 8, flat).seconds == pytest.approx(3 * seconds, abs=20 * TICK)


@pytest.mark.parametrize("late", ["sender", "receiver"])
def test_a_message_leaves_when_both_ends_are_there(flat: Any, late: str) -> None:
    def program(comm: Comm) -> None:
        if comm.rank == ("sender", "receiver").index(late):
            comm.compute(1.0)
        if comm.rank == 0:
            comm.send(numbers(), 1)
        elif comm.rank == 1:
            comm.recv(numbers(), 0)

    seconds = simcoll.estimate("send", 4 << 18, flat, ranks=(0, 1)).seconds
    assert simulate(program, 2, flat).seconds == pytest.approx(1.0 + seconds, abs=20 * TICK)


def test_a_buffered_message_is_on_its_way_before_its_receiver_comes(flat: Any) -> None:
    def program(comm: Comm) -> None:
        if comm.rank == 0:
            comm.send(numbers(), 1)
        elif comm.rank == 1:
            comm.compute(1.0)
            comm.recv(numbers(), 0)

    assert simulate(program, 2, flat, sends="buffered").seconds == pytest.approx(1.0, abs=20 * TICK)


def test_a_slow_rank_is_named_and_the_time_that_it_costs() -> None:
    def program(comm: Comm) -> None:
        for _ in range(30):
            comm.compute(0.5 if comm.rank == 2 else 0.01)
            comm.all_reduce(numbers(1))

    outcome = simulate(program, 4)
    [finding] = outcome.findings
    assert (finding.code, finding.severity, finding.culprits) == ("SC801", Severity.WARNING, (2,))
    assert outcome.ok
    assert outcome.seconds == pytest.approx(15.0, abs=0.1)


def test_without_a_topology_calls_take_the_making_of_them() -> None:
    assert simulate(lambda comm: comm.all_reduce(numbers()), 4).seconds < 10 * TICK


def test_a_topology_needs_a_place_for_every_rank(flat: Any) -> None:
    with pytest.raises(ConfigurationError, match="9 ranks, and the topology has 8"):
        simulate(lambda comm: None, 9, flat)
