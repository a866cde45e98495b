"""Which ranks of a large job a dry run chooses: corners, and between ranks that differ, each once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from simcoll.core.record import Group, Source
from simcoll.core.trace import SLOT, MemoryTrace, Trace
from simcoll.dryrun.chosen_ranks import (
    FOR_PRICE,
    FOR_VERDICT,
    MOST_ALL,
    MOST_PRICED,
    RankChoice,
    first_choice,
    next_choice,
)
from simcoll.spec.call import Call

WORLD = 1000
HALF = Group("1", "", tuple(range(WORLD // 2)))


def trace(rank: int, calls: int, *, groups: tuple[Group, ...] = ()) -> MemoryTrace:
    everybody = Group("0", "default_pg", tuple(range(WORLD)))
    call, source = Call("barrier", "barrier"), Source("train.py", 1, "main")
    slots = np.zeros(calls, SLOT)
    return MemoryTrace(
        rank, WORLD, "record", (everybody, *groups), [call], [source], [], slots, {}, (), {}, frozenset()
    )


def chosen(of: Callable[[int], Trace | None], choice: RankChoice = FOR_VERDICT) -> list[int]:
    """All ranks that are run, in the order in which they are chosen."""
    traces: list[Trace] = []
    run: list[int] = []
    new = choice.first(WORLD)
    while new:
        assert not set(new) & set(run)
        run += new
        traces += [found for rank in new if (found := of(rank)) is not None]
        new = choice.following(traces, run, WORLD)
    return run


def test_of_a_small_job_all_are_run_and_no_more() -> None:
    assert first_choice(MOST_ALL) == list(range(MOST_ALL))
    assert next_choice([trace(0, 1)], range(MOST_ALL), MOST_ALL) == []


def test_the_border_between_programs_is_found() -> None:
    assert {299, 300} <= set(chosen(lambda rank: trace(rank, 1 + (rank >= 300))))


def test_the_corners_of_groups_are_run() -> None:
    assert 0 in (run := chosen(lambda rank: trace(rank, 1, groups=(HALF,) if rank in HALF.ranks else ())))
    assert WORLD // 2 - 1 in run


def test_ranks_without_a_trace_are_run_once() -> None:
    silent = {499, 300}
    run = chosen(lambda rank: None if rank in silent else trace(rank, 1, groups=(HALF,) if rank < 500 else ()))
    assert sorted(set(run)) == sorted(run)
    assert {498, 499, 500} <= set(run)


@settings(max_examples=40)
@given(st.sets(st.integers(0, WORLD - 1), max_size=9), st.sets(st.integers(0, WORLD - 1), max_size=9))
def test_no_rank_is_chosen_twice_and_never_too_many(silent: set[int], longer: set[int]) -> None:
    run = chosen(lambda rank: None if rank in silent else trace(rank, 1 + (rank in longer)))
    assert len(run) == len(set(run)) <= MOST_ALL


def mesh(rank: int) -> tuple[Group, ...]:
    """The groups of a rank in a mesh of 10 stages and 100 replicas."""
    stage, replica = divmod(rank, 100)
    across = Group(f"stages{replica}", "", tuple(range(replica, WORLD, 100)))
    return Group(f"replicas{stage}", "", tuple(range(stage * 100, stage * 100 + 100))), across


def test_a_price_of_alike_ranks_takes_three() -> None:
    assert chosen(lambda rank: trace(rank, 1 + (rank == 0)), FOR_PRICE) == [0, 1, 999]


def test_a_price_takes_a_rank_of_each_stage_that_differs() -> None:
    run = chosen(lambda rank: trace(rank, 1 + (rank < 100) + 2 * (rank >= 900), groups=mesh(rank)), FOR_PRICE)
    assert {rank // 100 for rank in run} >= {0, 1, 8, 9}
    assert len(run) <= MOST_PRICED


@settings(max_examples=40)
@given(st.sets(st.integers(0, WORLD - 1), max_size=9), st.sets(st.integers(0, WORLD - 1), max_size=9))
def test_a_price_takes_no_rank_twice_and_never_too_many(silent: set[int], longer: set[int]) -> None:
    run = chosen(
        lambda rank: None if rank in silent else trace(rank, 1 + (rank in longer), groups=mesh(rank)), FOR_PRICE
    )
    assert len(run) == len(set(run)) <= MOST_PRICED
