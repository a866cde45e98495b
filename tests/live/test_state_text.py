"""The line on why a job stands: it names the rank for which, in the end, all others wait."""

from dataclasses import replace

import pytest

from simcoll.core.record import Group, Record, Source, State
from simcoll.live.now import Doing, JobNow, Motion, RankNow
from simcoll.live.state_text import why_of
from tests.support.jobs import all_reduce, message

WORLD = Group("0", "default_pg", (0, 1, 2, 3))
LINE = Source("train.py", 7, "step", "")


def rank(number, *waits_for, seconds=1.0, call=None, doing=None):
    """A rank that waits for others in an all-reduce, or in a receive from the one; or that runs its own code."""
    single = len(waits_for) == 1 and call is None
    made = call or (message("recv", *waits_for) if single else all_reduce(8))
    sequence, p2p = (0, 4) if made.peer is not None else (9, 0)
    record = Record("0", sequence, made, LINE, p2p_sequence=p2p, state=State.STARTED)
    does = doing or (Doing.WAITS if waits_for else Doing.RUNS)
    return RankNow(number, "host", 100 + number, does, WORLD, record, for_seconds=seconds, waits_for=waits_for)


def why(*ranks):
    job = JobNow("job", 1, len(ranks), "record", Motion.STANDING, 3.0, "", (), ranks)
    return why_of(job)


def test_a_chain_of_messages_names_its_end():
    said = why(rank(0, 1, seconds=2.9), rank(1, 2, seconds=2.8), rank(2), rank(3, 2, seconds=2.7))
    assert said.startswith(
        "for 3.00 s: rank 1 waits in recv #4 of default_pg at train.py:7 in step for rank 2; rank 2 "
    )
    assert said.endswith("; ranks 0 and 3 wait behind")


def test_a_collective_names_all_that_wait_in_it():
    said = why(*(rank(number, 3, call=all_reduce(8)) for number in range(3)), rank(3))
    assert said.startswith(
        "for 3.00 s: ranks 0-2 wait in all_reduce #9 of default_pg at train.py:7 in step for rank 3; "
    )
    assert "behind" not in said


def test_the_rank_that_holds_up_most_is_named():
    said = why(rank(0, 1, seconds=9.0), rank(1), rank(2, 3), rank(3, 4), rank(4))
    assert "rank 3 waits in" in said
    assert "for rank 4; rank 4 " in said


@pytest.mark.parametrize("ranks", [(rank(0, 1), rank(1, 0)), (rank(0, call=all_reduce(8), doing=Doing.WAITS),)])
def test_a_wait_for_nobody_that_runs_names_who_waits_longest(ranks):
    assert ": rank 0 waits 1.00 s" in why(*ranks)


def test_who_runs_on_another_node_is_named_where_nobody_here_holds_the_job_up():
    here = [rank(number, call=all_reduce(8), doing=Doing.WAITS) for number in range(2)]
    apart = [
        replace(rank(number, seconds=number), record=None, place="completed all_reduce (collective 8 of group 0)")
        for number in (2, 3)
    ]
    assert "; rank 2 runs its own code for 2.00 s; rank 2 records on other nodes" in why(*here, apart[0])
    assert "; rank 3 runs its own code for 3.00 s, and so does rank 2; ranks 2-3 record" in why(*here, *apart)


def test_of_ranks_on_other_nodes_those_are_named_that_left_records_here():
    remote = replace(rank(2, call=all_reduce(8), doing=Doing.WAITS, seconds=9.0), record=None, place="started barrier")
    silent = replace(remote, rank=3, silent_seconds=20.0)
    said = why(*(rank(number, call=all_reduce(8), doing=Doing.WAITS) for number in range(2)), remote, silent)
    assert said.startswith("for 3.00 s: ranks 0-2: rank 0 waits 1.00 s in all_reduce #9 of default_pg at train.py:7")
    assert "; nothing was heard of host (rank 3) for 20.0" in said
