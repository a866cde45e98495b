"""The engine: calls meet whoever makes them, run when all have come, and leave nobody waiting in vain."""

from __future__ import annotations

import threading
import unittest
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from simcoll.backends.engine.parking import FreeThreads, StuckError
from simcoll.backends.engine.tickets import PeerFailedError, Ticket
from simcoll.backends.engine.turns import Turns
from simcoll.backends.engine.world import World
from simcoll.backends.simulated import simulate
from simcoll.backends.simulated.comm import Comm
from simcoll.core.record import Group, State
from simcoll.spec.call import Buffer, Call
from simcoll.spec.semantics import Array, Outputs

PAIR = Group("0", "default_pg", (0, 1))


class Held:
    """The buffer of an all-reduce."""

    def __init__(self, value: float) -> None:
        self.value = np.array([value])

    def read(self) -> list[Array]:
        return [self.value]

    def write(self, results: Outputs) -> None:
        assert results[0] is not None
        self.value[...] = results[0]


def summing(rank: int, group: Group = PAIR) -> Ticket:
    buffers = (Buffer((1,), "float64"),)
    return Ticket(group, rank, Call("all_reduce", "allreduce", buffers, buffers, "sum"), Held(rank + 1.0))


def on_turns(size: int, body: Callable[[World, int], None]) -> None:
    """Run ``body`` on every rank; what it raises is raised here."""
    turns, raised = Turns(size), []
    world = World(size, turns)

    def rank_body(rank: int) -> None:
        try:
            body(world, rank)
        except BaseException as error:
            raised.append(error)

    turns.run(rank_body)
    if raised:
        raise raised[0]


def test_the_last_rank_to_come_settles_for_all() -> None:
    done: list[tuple[int, bool]] = []

    def body(world: World, rank: int) -> None:
        ticket = summing(rank)
        world.post(ticket)
        done.append((rank, ticket.done))
        world.wait(ticket)
        assert ticket.data.read()[0].tolist() == [3.0]

    on_turns(2, body)
    assert done == [(0, False), (1, True)]


def test_a_deferred_call_runs_when_its_rank_next_waits() -> None:
    def body(world: World, rank: int) -> None:
        ticket = summing(rank)
        ticket.deferred = True
        world.post(ticket)
        assert not ticket.done
        world.wait(ticket)

    on_turns(2, body)


def test_who_wants_to_know_is_told_once() -> None:
    told: list[int] = []

    def body(world: World, rank: int) -> None:
        ticket = summing(rank)
        world.post(ticket)
        world.when_done(ticket, lambda one: told.append(one.rank))
        world.wait(ticket)

    on_turns(2, body)
    assert sorted(told) == [0, 1]


@pytest.mark.parametrize("other", [Group("1", "", (0, 1)), Group("0", "", (1, 0)), Group("0", "", (0, 1, 2))])
def test_calls_of_different_groups_do_not_meet(other: Group) -> None:
    world = World(3, FreeThreads())
    mine, theirs = summing(0), summing(1, other)
    world.post(mine)
    world.post(theirs)
    assert not mine.done
    assert not theirs.done


def test_a_group_that_is_made_anew_counts_anew() -> None:
    world = World(2, FreeThreads())
    first = [summing(0), summing(1)]
    for ticket in first:
        world.post(ticket)
    world.close(PAIR, 0)
    world.close(PAIR, 1)
    again = [summing(0), summing(1)]
    for ticket in again:
        world.post(ticket)
    assert [ticket.sequence for ticket in (*first, *again)] == [1, 1, 1, 1]
    assert all(ticket.done for ticket in again)


def test_a_rank_that_fails_ends_those_who_wait_with_its_own_exception() -> None:
    own = ValueError("mine")

    def body(world: World, rank: int) -> None:
        ticket = summing(rank)
        if rank == 1:
            world.fail(1, own)
            return
        world.post(ticket)
        with pytest.raises(PeerFailedError) as raised:
            world.wait(ticket)
        assert raised.value.__cause__ is own

    on_turns(2, body)


@pytest.mark.parametrize("skip", [unittest.SkipTest("later"), SystemExit(3)])
def test_skips_and_exits_pass_through(skip: BaseException) -> None:
    world = World(2, FreeThreads())
    ticket = summing(0)
    world.post(ticket)
    world.fail(1, skip)
    with pytest.raises(type(skip), match=r"later|3"):
        world.wait(ticket)


def test_free_ranks_meet() -> None:
    world, values = World(2, FreeThreads()), {}

    def body(rank: int) -> None:
        ticket = summing(rank)
        world.post(ticket)
        world.wait(ticket, 20)
        values[rank] = float(ticket.data.read()[0][0])

    threads = [threading.Thread(target=body, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert values == {0: 3.0, 1: 3.0}


def test_a_wait_of_a_free_rank_ends_at_its_timeout() -> None:
    world = World(2, FreeThreads())
    ticket = summing(0)
    world.post(ticket)
    with pytest.raises(StuckError, match="rank 0 waits in all_reduce"):
        world.wait(ticket, 0.02)


def test_nobody_waits_for_who_has_left() -> None:
    world = World(2, FreeThreads())
    ticket = summing(0)
    world.post(ticket)
    world.leave(1)
    with pytest.raises(StuckError, match=r"for rank 1, which never comes$"):
        world.wait(ticket)


# Of simulated ranks.


def ones(count: int = 1) -> Any:
    return np.ones(count)


def test_what_is_written_before_a_call_runs_is_an_error_whoever_comes_last() -> None:
    for late in (0, 1):

        def program(comm: Comm, late: int = late) -> None:
            if comm.rank != late:
                comm.send(ones(), late)
            else:
                comm.recv(ones(), 1 - late)
            array = ones()
            work = comm.all_reduce(array, async_op=True)
            if comm.rank == late:
                array += 1
            assert work is not None
            work.wait()

        outcome = simulate(program, 2)
        assert [(one.code, one.severity.value, one.culprits) for one in outcome.findings] == [
            ("SC502", "error", (late,))
        ]


@pytest.mark.parametrize("late", [0, 1])
def test_a_write_to_a_buffer_that_receives_is_a_race(late: int) -> None:
    """Whether the message comes first, or is written over what the program wrote."""

    def program(comm: Comm) -> None:
        if comm.rank == 0:
            if late:
                comm.recv(ones(), 1)
            comm.send(ones(), 1)
            return
        array = ones()
        taken = comm.irecv(array, 0)
        array += 1
        asked = comm.isend(ones(), 0) if late else None
        taken.wait()
        array += 1
        if asked is not None:
            asked.wait()

    outcome = simulate(program, 2)
    assert [(one.code, one.severity.value, one.culprits) for one in outcome.findings] == [("SC502", "warning", (1,))]


def test_a_message_that_is_there_when_its_receive_is_made_is_no_write_of_the_program() -> None:
    def program(comm: Comm) -> None:
        comm.barrier()
        if comm.rank == 0:
            comm.send(2 * ones(), 1)
            return
        array = ones()
        comm.irecv(array, 0).wait()
        assert (array == 2).all()

    for seed in range(4):
        assert simulate(program, 2, seed=seed).findings == ()


def test_a_result_may_be_overwritten_once_the_call_was_waited_for() -> None:
    def program(comm: Comm) -> None:
        array = ones()
        work = comm.all_reduce(array, async_op=True)
        assert work is not None
        work.wait()
        array += 1

    assert simulate(program, 2).findings == ()


def test_a_message_that_is_let_go_never_arrives() -> None:
    def program(comm: Comm) -> None:
        if comm.rank == 0:
            comm.isend(ones(), 1)
            comm.recv(ones(), 1, 1)
        else:
            comm.send(ones(), 0, 1)
            comm.recv(ones(), 0)

    outcome = simulate(program, 2)
    assert [(one.code, one.culprits) for one in outcome.findings] == [("SC501", (0,))]


def test_a_message_from_anybody_that_does_not_fit_is_named() -> None:
    def program(comm: Comm) -> None:
        if comm.rank:
            comm.send(ones(3), 0)
        else:
            comm.recv(ones(2))

    assert [one.code for one in simulate(program, 2).findings] == ["SC301"]


def test_ranks_that_ask_for_ever_are_told_that_they_ask_in_vain() -> None:
    def program(comm: Comm) -> None:
        group = comm.new_group([0, 1])
        assert group is not None
        work = (group if comm.rank else comm).barrier(async_op=True)
        assert work is not None
        while not work.is_completed():
            pass

    outcome = simulate(program, 2)
    assert sorted(outcome.exceptions) == [0, 1]
    assert all("asks again and again" in str(error) for error in outcome.exceptions.values())


def test_a_thread_of_a_rank_may_make_its_calls() -> None:
    def program(comm: Comm) -> float:
        total = ones()

        def calls() -> None:
            with comm._member.world.threads.adopted(comm.rank):
                comm.all_reduce(total)

        thread = threading.Thread(target=calls)
        thread.start()
        thread.join()
        return float(total[0])

    outcome = simulate(program, 3)
    assert outcome.results == {0: 3.0, 1: 3.0, 2: 3.0}
    assert [record.state for record in outcome.records(0)] == [State.COMPLETED]
