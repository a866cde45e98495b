"""Ranks that did not run: the program of a rank with the same place, in groups of their own."""

from __future__ import annotations

import pytest

from simcoll.core.record import Event, Group, Record
from simcoll.core.trace import MemoryTrace
from simcoll.dryrun.extrapolate import extrapolate
from simcoll.pricing.job import recorded_job
from simcoll.spec.call import Buffer, Call
from tests.support.traces import trace_of

BUFFER = Buffer((4,), "float32", "cpu")
STAGES, DATA = 4, 8


def reduced(name: str, size: int = 4) -> Record:
    """The first all_reduce of a group."""
    buffer = Buffer((size,), "float32", "cpu")
    return Record(name, 1, Call("all_reduce", (buffer,), (buffer,)))


def mesh(rank: int, *, told: bool) -> MemoryTrace:
    """A rank of a pipeline of four stages of eight: it sends to the next stage and adds up with its own."""
    stage, place = divmod(rank, DATA)
    world = tuple(range(STAGES * DATA))
    stages = [tuple(range(one * DATA, (one + 1) * DATA)) for one in range(STAGES)]
    lines = [tuple(range(one, STAGES * DATA, DATA)) for one in range(DATA)]
    groups = [Group("0", "world", world), Group("1", "line", lines[place]), Group("2", "data", stages[stage])]
    records = [reduced("0"), reduced("2", 4 + stage)]
    if stage:
        call = Call("recv", (), (BUFFER,), peer=rank - DATA)
        records.append(Record("0", 1, call, p2p_sequence=1))
    if stage < STAGES - 1:
        call = Call("send", (BUFFER,), (), peer=rank + DATA)
        records.append(Record("0", 1, call, p2p_sequence=1 + (stage > 0)))
    made = [*lines, *stages]
    events = [
        Event("creating", place, {"life": 1, "ordinal": place + 1, "ranks": list(ranks)})
        for place, ranks in enumerate(made)
    ]
    return trace_of(rank, STAGES * DATA, groups, records, events=events if told else ())


@pytest.mark.parametrize("told", [True, False], ids=["groups are told", "groups follow the pattern"])
def test_each_stage_stands_for_itself(told):
    filled = extrapolate([mesh(rank, told=told) for rank in (0, 8, 16, 24)], STAGES * DATA)
    assert filled.stand_ins == {rank: rank // DATA * DATA for rank in range(32) if rank % DATA}
    assert not filled.approximate
    assert not filled.ungrouped
    everybody = [mesh(rank, told=False) for rank in range(STAGES * DATA)]
    for one, real in zip(filled.traces, everybody, strict=True):
        assert [group.ranks for group in one.groups] == [group.ranks for group in real.groups]
        assert [one.signatures[row] for row in one.slots["signature"]] == [
            real.signatures[row] for row in real.slots["signature"]
        ]


def test_the_job_is_that_of_all_ranks():
    filled = extrapolate([mesh(rank, told=True) for rank in (1, 9, 17, 25)], STAGES * DATA)
    job, real = (recorded_job(traces) for traces in (filled.traces, [mesh(rank, told=True) for rank in range(32)]))
    assert job.left_out == real.left_out == 0
    assert job.calls == real.calls
    assert {stream.ranks for stream in job.streams} == {stream.ranks for stream in real.streams}


def test_a_place_that_nobody_ran_in_is_said():
    filled = extrapolate([mesh(rank, told=True) for rank in (0, 24)], STAGES * DATA)
    assert filled.approximate == tuple(range(8, 24))


def test_odd_ranks_stand_for_odd_ones():
    world = Group("0", "world", tuple(range(16)))
    traces = [trace_of(rank, 16, [world], [reduced("0", 4 + rank % 2)]) for rank in (0, 1, 2, 15)]
    filled = extrapolate(traces, 16)
    assert all(other % 2 == rank % 2 and other for rank, other in filled.stand_ins.items())


def test_a_rank_whose_groups_nobody_knows_is_left_out():
    groups = [Group("0", "world", (0, 1, 2, 3)), Group("1", "odd", (0, 1, 3))]
    traces = [trace_of(rank, 4, groups, [reduced("0"), reduced("1")]) for rank in (0, 1)]
    filled = extrapolate(traces, 4)
    assert (filled.stand_ins, filled.ungrouped) == ({3: 1}, (2,))


def test_a_job_that_ran_in_full_stays_as_it_is():
    traces = [mesh(rank, told=True) for rank in range(STAGES * DATA)]
    assert extrapolate(traces, STAGES * DATA).traces == traces
