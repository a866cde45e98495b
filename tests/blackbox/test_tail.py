"""The newest records of a file that grows are those that a reader of the whole file finds."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simcoll.blackbox import BlackBoxWriter, Slot, read_black_box
from simcoll.blackbox import format as layout
from simcoll.blackbox.table import KnownEntries
from simcoll.blackbox.tail import BoxTail
from simcoll.core.record import Group, Source, State
from simcoll.spec.call import Call

WORLD = Group("0", "default_pg", (0, 1))
RING = 16


class Rank:
    """A rank that writes calls, each with a line of its own every third time."""

    def __init__(self, path: Path) -> None:
        self.box = BlackBoxWriter(path, rank=0, world_size=2, mode="record", records=RING)
        self.group = self.box.group(WORLD)
        self.made = 0

    def call(self, *, ends: bool = True) -> int:
        self.made += 1
        signature = self.box.signature(Call(f"op{self.made // 3}", "x"))
        source = self.box.source(Source("train.py", self.made // 3, "f", ""))
        ticket = self.box.schedule(Slot(self.group, self.made, signature, source, state=State.STARTED))
        if ends:
            self.box.advance(ticket)
        return ticket


def tail_of(path: Path, most: int = 8) -> BoxTail:
    return BoxTail(path, most, KnownEntries())


@given(steps=st.lists(st.integers(0, 40), max_size=6), most=st.integers(1, 20))
def test_it_has_what_the_reader_finds(tmp_path_factory, steps, most):
    path = tmp_path_factory.mktemp("box") / "rank00000.simcoll"
    rank, tail = Rank(path), tail_of(path, most)
    assert tail.look()
    for count in steps:
        for _ in range(count):
            rank.call()
        assert tail.look() == (count > 0)
        whole = read_black_box(path)
        assert tail.newest == rank.made
        assert np.array_equal(tail.slots, whole.slots[-min(most, RING) :])
        box = tail.box()
        assert [box.record(row) for row in range(len(box.slots))] == [
            whole.record(len(whole.slots) - len(box.slots) + row) for row in range(len(box.slots))
        ]
        if rank.made > most:
            assert box.dropped == {0: rank.made - len(box.slots)}
    assert not tail.look()


def test_a_call_that_ends_later_is_news(tmp_path):
    path = tmp_path / "rank00000.simcoll"
    rank, tail = Rank(path), tail_of(path)
    ticket = rank.call(ends=False)
    tail.look()
    assert not tail.look()
    assert tail.slots["state"].tolist() == [State.STARTED]
    assert tail.box().alike == b""
    rank.box.advance(ticket)
    assert tail.look()
    assert tail.slots["state"].tolist() == [State.COMPLETED]


def test_records_before_a_torn_one_are_dropped(tmp_path):
    path = tmp_path / "rank00000.simcoll"
    rank, tail = Rank(path), tail_of(path)
    for _ in range(6):
        rank.call()
    tear(path, 4)
    tail.look()
    assert tail.slots["sequence"].tolist() == [5, 6]
    tear(path, 6)
    tail.look()
    other = tail_of(path)
    other.look()
    assert other.newest == 6
    assert other.slots["sequence"].tolist() == [5]


def tear(path: Path, index: int) -> None:
    with path.open("r+b") as file:
        file.seek(layout.ring_offset(layout.GROUP_ROWS) + index * layout.SLOT.size - 8)
        file.write(bytes(8))


def test_the_file_of_another_attempt_takes_its_place(tmp_path):
    path = tmp_path / "rank00000.simcoll"
    first, tail = Rank(path), tail_of(path)
    for _ in range(5):
        first.call()
    tail.look()
    second = Rank(path)
    second.call()
    assert tail.look()
    assert (tail.newest, len(tail.slots)) == (1, 1)


@pytest.mark.parametrize("text", [b"", b"no black box", b"SIMCOLL\x1a" + bytes(5000)])
def test_a_file_that_cannot_be_read_says_why_and_may_come_back(tmp_path, text):
    path = tmp_path / "rank00000.simcoll"
    tail = tail_of(path)
    tail.look()
    assert "No such file" in tail.problem
    path.write_bytes(text)
    tail.look()
    assert tail.problem
    assert tail.box() is None
    rank = Rank(path)
    rank.call()
    assert tail.look()
    assert (tail.problem, tail.newest) == ("", 1)


def test_a_file_that_is_cut_while_it_is_read_gives_what_is_left(tmp_path):
    path = tmp_path / "rank00000.simcoll"
    rank, tail = Rank(path), tail_of(path)
    for _ in range(6):
        rank.call()
    tail.look()
    with path.open("r+b") as file:
        file.truncate(layout.ring_offset(layout.GROUP_ROWS) + 3 * layout.SLOT.size)
    other = tail_of(path)
    for one in (tail, other):
        one.look()
        assert len(one.slots) <= 6
    assert other.newest == 3


def test_a_damaged_entry_costs_itself(tmp_path):
    path = tmp_path / "rank00000.simcoll"
    rank, tail = Rank(path), tail_of(path)
    for _ in range(9):
        rank.call()
    data = bytearray(path.read_bytes())
    place = data.index(b'"line":1')
    data[place + 7] = ord("7")
    path.write_bytes(data)
    tail.look()
    assert sorted(tail.entries.sources) == [0, 2, 3]
    assert len(tail.slots) == 8
