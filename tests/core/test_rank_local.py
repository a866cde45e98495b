"""A value of a rank is its own, in whichever of its threads; elsewhere there is one a process."""

from __future__ import annotations

import threading

from simcoll.core.rank_local import RankLocal, RankThreads, acting_as, acting_rank, main_thread_of_rank


def test_every_rank_has_its_own_value_and_the_process_one() -> None:
    made: RankLocal[list[int]] = RankLocal(list)
    made.here.append(-1)
    ranks = [RankThreads(rank) for rank in range(2)]
    for rank in ranks:
        with acting_as(rank):
            made.here.append(rank.rank)
    seen = []
    for place in (*ranks, None):
        with acting_as(place):
            seen.append(list(made.here))
    assert seen == [[0], [1], [-1]]


def test_a_value_that_is_set_is_the_ranks_alone() -> None:
    value: RankLocal[str] = RankLocal(lambda: "made")
    with acting_as(RankThreads(0)):
        value.set("set")
        assert value.here == "set"
    assert value.here == "made"
    value.set("of the process")
    assert value.here == "of the process"


def test_blocks_nest_and_belong_to_their_thread() -> None:
    outer, inner = RankThreads(0), RankThreads(1)
    seen = []
    with acting_as(outer):
        with acting_as(inner):
            assert acting_rank() is inner
        assert acting_rank() is outer
        thread = threading.Thread(target=lambda: seen.append(acting_rank()))
        thread.start()
        thread.join()
    assert seen == [None]
    assert acting_rank() is None


def test_main_thread_is_the_one_in_which_a_ranks_program_began() -> None:
    rank = RankThreads(0)
    rank.main_thread = 17
    assert main_thread_of_rank() == threading.main_thread().ident
    with acting_as(rank):
        assert main_thread_of_rank() == 17
