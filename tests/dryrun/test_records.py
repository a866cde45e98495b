"""Sizes that rest on received values are left out on all ranks, also where one rank made a call more before."""

from simcoll.core.record import Event, Group, Record, Source, State
from simcoll.dryrun.rank.event_kinds import SIZED_BY_OTHERS
from simcoll.dryrun.records import comparable, sized_differently
from simcoll.spec.call import Buffer, Call
from tests.support.traces import trace_of

WORLD = Group("0", "default_pg", (0, 1))


def broadcast(sequence, size, line):
    call = Call("broadcast", "broadcast", (Buffer((size,), "int32"),), (Buffer((size,), "int32"),), root=0)
    return Record("0", sequence, call, Source("train.py", line, "step"), State.COMPLETED, scheduled_ns=sequence * 10)


def marked(sequence):
    data = {"group": "0", "sequence": sequence, "message": 0, "op": "broadcast"}
    return Event(SIZED_BY_OTHERS, sequence * 10, data)


def sizes(trace):
    return [trace.signatures[int(slot["signature"])].outputs[0].shape[0] for slot in trace.slots]


def test_the_number_of_a_call_tells_where_lines_differ():
    here = trace_of(0, 2, [WORLD], [broadcast(1, 3, 7), broadcast(2, 4, 8)], events=[marked(1)])
    there = trace_of(1, 2, [WORLD], [broadcast(1, 5, 17), broadcast(2, 4, 8)])
    assert [sizes(one) for one in comparable([here, there])] == [[0, 4], [0, 4]]


def test_the_round_of_a_line_tells_where_numbers_are_shifted():
    here = trace_of(0, 2, [WORLD], [broadcast(1, 9, 5), broadcast(2, 3, 7), broadcast(3, 1, 7)], events=[marked(2)])
    there = trace_of(1, 2, [WORLD], [broadcast(1, 3, 7), broadcast(2, 1, 7)])
    assert [sizes(one) for one in comparable([here, there])] == [[9, 0, 1], [0, 1]]


def test_another_call_that_has_got_the_number_keeps_its_sizes():
    here = trace_of(0, 2, [WORLD], [broadcast(1, 9, 5), broadcast(2, 4, 8), broadcast(3, 3, 7)])
    there = trace_of(1, 2, [WORLD], [broadcast(1, 4, 8), broadcast(2, 3, 7)], events=[marked(2)])
    assert [sizes(one) for one in comparable([here, there])] == [[9, 4, 0], [4, 0]]
    assert sized_differently([here, there]) == []
