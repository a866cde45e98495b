"""The order in which a device would do what a program asks of it, and the programs that a replay makes of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch")

from simcoll.core.record import Event, Group, Record
from simcoll.core.steps import Steps
from simcoll.core.trace import MemoryTrace
from simcoll.dryrun.rank.fake_cuda import Streams
from simcoll.pricing.device_ops import EVENT, DeviceOrder, Item, Key
from simcoll.pricing.device_trace import DevicePrograms
from simcoll.pricing.rank_program import BLOCK, LAUNCH, WAIT, Program
from simcoll.spec.call import Buffer, Call
from tests.support.traces import trace_of

GROUP = Group("0", "world", (0, 1))
CALL = Call("all_reduce", (Buffer((4,), "float32", "cpu"),), (Buffer((4,), "float32", "cpu"),))


def key(number: int) -> Key:
    """The n-th collective."""
    return "0", number, 0


class Written:
    """An order, what it wrote, and the program that comes of it."""

    def __init__(self) -> None:
        self.items: list[Item] = []
        self.order = DeviceOrder(self.items.extend)
        self.streams = Streams(self.order)

    def work(self, flops: int = 8) -> None:
        """The default stream computes."""
        self.order.compute("bfloat16", flops, 8)

    def trace(self, calls: int) -> MemoryTrace:
        """A rank's trace with so many calls."""
        self.order.end()
        records = [Record("0", number, CALL) for number in range(1, calls + 1)]
        return trace_of(0, 2, [GROUP], records, events=[Event(EVENT, 1, {"items": self.items})])

    def program(self, calls: int) -> tuple[list[tuple[int, int]], Program, Steps | None]:
        """Kind and call of each operation; the program, its steps."""
        found = DevicePrograms().program(self.trace(calls), np.arange(calls, dtype=np.int32))
        assert found is not None
        program, steps = found
        return list(zip(program.kind.tolist(), (program.instance + 1).tolist(), strict=True)), program, steps


def test_a_call_that_is_waited_for_at_once_blocks():
    written = Written()
    written.work(24)
    written.streams.launch(key(1), waits=True)
    written.work(40)
    written.streams.launch(key(2), waits=False)
    written.work(56)
    written.streams.wait(key(2))
    operations, program, steps = written.program(2)
    assert operations == [(BLOCK, 1), (LAUNCH, 2), (WAIT, 2)]
    assert program.work is not None
    assert [program.work.distinct[one].flops for one in program.work.which] == [24, 40, 56]
    assert program.place.tolist() == [0, 1, 2]
    assert steps is None


def test_a_side_stream_launches_where_it_was_let_go():
    """FSDP2's forward: what is gathered next is launched by the host after this layer, and begins before it."""
    written = Written()
    side = written.streams
    stream = type(side.default)(side)
    copied_out = side.default.record_event()
    written.work(100)
    stream.wait_event(copied_out)
    side.current = stream
    side.launch(key(1), waits=True)
    gathered = stream.record_event()
    side.current = side.default
    written.work(200)
    side.default.wait_event(gathered)
    operations, program, _ = written.program(1)
    assert operations == [(LAUNCH, 1), (WAIT, 1)]
    assert program.work is not None
    assert [program.work.distinct[one].flops for one in program.work.which] == [0, 300]


def test_calls_of_one_group_keep_the_order_of_the_host():
    written = Written()
    early, late = (type(written.streams.default)(written.streams) for _ in range(2))
    written.work()
    late.wait_stream(written.streams.default)
    written.streams.current = late
    written.streams.launch(key(1), waits=True)
    written.streams.current = early
    written.streams.launch(key(2), waits=True)
    operations, program, _ = written.program(2)
    assert operations == [(LAUNCH, 1), (LAUNCH, 2), (WAIT, 1), (WAIT, 2)]
    assert program.work is not None
    assert program.work.distinct[program.work.which[0]].flops == 8


def test_nothing_moves_across_a_step_or_a_value_that_the_host_waits_for():
    for end in (DeviceOrder.step, DeviceOrder.hold):
        written = Written()
        free = type(written.streams.default)(written.streams)
        written.work()
        end(written.order)
        written.streams.current = free
        written.streams.launch(key(1), waits=True)
        _, program, _ = written.program(1)
        assert program.work is not None
        assert program.work.distinct[program.work.which[0]].flops == 8


def test_steps_are_those_of_an_optimiser():
    written = Written()
    for number in range(1, 8):
        written.streams.launch(key(number), waits=True)
        if number in (3, 5, 7):
            written.order.step()
    assert written.program(7)[2] == Steps(3, 2, 2)


def test_calls_without_their_other_end_are_left_out_and_their_work_is_not():
    written = Written()
    for number in (1, 2):
        written.work(100 * number)
        written.streams.launch(key(number), waits=True)
    found = DevicePrograms().program(written.trace(2), np.array([-1, 5], np.int32))
    assert found is not None
    assert found[0].instance.tolist() == [5]
    assert found[0].work is not None
    assert found[0].work.distinct[0].flops == 300


def test_what_is_no_item_is_passed_over():
    written = Written()
    written.streams.launch(key(1), waits=True)
    trace = written.trace(1)
    wrong = [[], ["x"], ["c", 3], ["c", [["bf16", 1]]], ["l", 0, 1, 1], ["s", "0", 1, 0], ["w", "0", -1, 0], "l", None]
    events = [Event(EVENT, 0, {"items": wrong}), Event(EVENT, 0, {"items": 7}), *trace.events]
    found = DevicePrograms().program(replace(trace, events=events), np.zeros(1, np.int32))
    assert found is not None
    assert found[0].kind.tolist() == [BLOCK]
