"""Calls and bytes by op over several looks, also of what nobody could read in time."""

from simcoll.blackbox import BlackBoxWriter, Slot
from simcoll.blackbox.table import KnownEntries
from simcoll.blackbox.tail import BoxTail
from simcoll.core.record import State
from simcoll.live.tally import UNKNOWN_OP, CallTally
from tests.support.jobs import LINES, WORLD, all_reduce, message


def writer(path):
    return BlackBoxWriter(path, rank=0, world_size=4, mode="record", records=64)


def make(box, call, times=1):
    group = box.group(WORLD)
    for _ in range(times):
        box.advance(box.schedule(Slot(group, 1, box.signature(call), box.source(LINES[0]), state=State.STARTED)))


def test_calls_are_counted_once_over_several_looks(tmp_path):
    box, tally = writer(tmp_path / "a.simcoll"), CallTally()
    tail = BoxTail(tmp_path / "a.simcoll", 16, KnownEntries())
    for _ in range(3):
        make(box, all_reduce(200), 5)
        make(box, message("send", 1), 2)
        tail.look()
        tally.add([tail])
        tally.add([tail])
    box.close()
    assert tally.calls == {"all_reduce": 15, "send": 6, UNKNOWN_OP: 0}
    assert tally.bytes == {"all_reduce": 15 * 800, "send": 6 * 12}


def test_calls_that_no_look_could_read_have_no_op(tmp_path):
    box, tally = writer(tmp_path / "a.simcoll"), CallTally()
    tail = BoxTail(tmp_path / "a.simcoll", 16, KnownEntries())
    make(box, all_reduce(200), 40)
    tail.look()
    tally.add([tail])
    assert tally.calls == {"all_reduce": 16, UNKNOWN_OP: 24}
    make(box, all_reduce(200), 100)
    tail.look()
    tally.add([tail])
    box.close()
    assert tally.calls == {"all_reduce": 32, UNKNOWN_OP: 108}


def test_another_run_in_the_same_file_begins_anew(tmp_path):
    tally = CallTally()
    tail = BoxTail(tmp_path / "a.simcoll", 16, KnownEntries())
    found = []
    for times in (9, 4):
        box = writer(tmp_path / "a.simcoll")
        make(box, all_reduce(200), times)
        tail.look()
        found.append((tally.add([tail]), tally.calls["all_reduce"]))
        box.close()
        (tmp_path / "a.simcoll").unlink()
    assert found == [(True, 9), (True, 4)]
