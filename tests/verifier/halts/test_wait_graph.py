"""Who can never go on: the least fixed point, whatever the order in which ranks come free."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from simcoll.core.record import Group, Record
from simcoll.spec.call import Call
from simcoll.verifier.halts.wait_graph import Wait, WaitGraph, _kept, _stuck

RANKS = 7
WORLD = Group("0", "", tuple(range(RANKS)))
NEEDS = st.frozensets(st.integers(0, RANKS - 1), max_size=3)
WAITS = st.dictionaries(
    st.integers(0, RANKS - 1), st.lists(st.tuples(NEEDS, st.booleans()), min_size=1, max_size=3), max_size=RANKS
)


def met(wait: Wait, free: set[int]) -> bool:
    return not wait.needs.isdisjoint(free) if wait.any else wait.needs <= free


@given(WAITS, st.frozensets(st.integers(0, RANKS - 1)))
def test_the_stuck_are_the_least_fixed_point(chosen: dict[int, list[tuple[frozenset[int], bool]]], alive) -> None:
    record = Record("0", 1, Call("barrier", "barrier"))
    by_rank = {
        rank: tuple(Wait(rank, WORLD, record, needs, any=one) for needs, one in waits) for rank, waits in chosen.items()
    }
    free, left = alive - set(by_rank), set(by_rank)
    while freed := {rank for rank in left if any(met(wait, free) for wait in by_rank[rank])}:
        free, left = free | freed, left - freed
    needs = {rank: [(wait.needs, wait.any) for wait in waits] for rank, waits in by_rank.items()}
    assert _stuck(needs, alive) == left


@given(WAITS, st.frozensets(st.integers(0, RANKS - 1)))
def test_a_cycle_is_one_of_waits_that_keep_each_other(chosen: dict[int, list[tuple[frozenset[int], bool]]], alive):
    """Also where a rank is kept by ranks that have failed alone, which wait for nobody."""
    record = Record("0", 1, Call("recv", "recv", peer=0), p2p_sequence=1)
    waits = {
        rank: [
            Wait(rank, Group(f"{rank} {at}", "", (0, 1)), record, needs, any=one)
            for at, (needs, one) in enumerate(mine)
        ]
        for rank, mine in chosen.items()
    }
    stuck = _stuck({rank: [(wait.needs, wait.any) for wait in mine] for rank, mine in waits.items()}, alive)
    kept = {rank: tuple(_kept(waits, {}, rank, stuck)) for rank in waits}
    cycle = WaitGraph(kept, frozenset(stuck), frozenset(waits)).cycle()
    assert all(after.rank in wait.needs for wait, after in zip(cycle, [*cycle[1:], *cycle[:1]], strict=True))


def test_a_chain_of_thousands_comes_free_at_once() -> None:
    needs = {rank: [(frozenset({rank - 1}), False)] for rank in range(1, 5000)}
    assert _stuck(needs, range(5000)) == set()


def test_a_rank_that_waits_for_an_ended_one_is_on_no_cycle() -> None:
    """Ranks 0 and 1 wait for each other, and for rank 2, which waits for one that can never come."""
    record = Record("0", 1, Call("barrier", "barrier"))

    def wait(rank: int, needs: set[int], kept: set[int]) -> tuple[Wait]:
        group = Group(str(rank), "", tuple(range(RANKS)))
        return (Wait(rank, group, record, frozenset(needs), kept=frozenset(kept)),)

    by_rank = {0: wait(0, {1, 2}, {1, 2}), 1: wait(1, {0}, {0}), 2: wait(2, {3}, set())}
    cycle = WaitGraph(by_rank, frozenset({0, 1, 2}), frozenset({0, 1, 2})).cycle()
    assert [one.rank for one in cycle] == [0, 1]
