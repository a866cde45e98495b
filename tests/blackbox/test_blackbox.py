"""The black box, written and read: what survives, what is dropped, what damage costs."""

import errno
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simcoll.blackbox import NO_TICKET, BlackBoxError, BlackBoxWriter, Slot, UnreadableError, read_black_box
from simcoll.blackbox import format as layout
from simcoll.blackbox.format import ASYNCHRONOUS, intact, seal
from simcoll.blackbox.reader import last_activity
from simcoll.blackbox.ring_reader import SLOT_DTYPE
from simcoll.core.record import Group, Source, State
from simcoll.spec.call import Buffer, Call
from tests.support.seeds import drawn

GROUP = Group("0", "default_pg", (0, 1))
CALL = Call("all_reduce", "allreduce", (Buffer((20, 10), "float32"),), (Buffer((20, 10), "float32"),), reduce_op="sum")
SOURCE = Source("train.py", 41, "step", "dist.all_reduce(loss)")


def make(path, records=16, **options):
    return BlackBoxWriter(path, **({"rank": 0, "world_size": 2, "mode": "detail", "records": records} | options))


def fill(box, calls, group=0):
    signature, source = box.signature(CALL), box.source(SOURCE)
    return [box.schedule(Slot(group, sequence, signature, source)) for sequence in range(1, calls + 1)]


def test_what_was_written_is_read(tmp_path):
    box = make(tmp_path / "rank00001.simcoll", rank=1, mode="record")
    group = box.group(GROUP)
    ticket = box.schedule(Slot(group, 1, box.signature(CALL), box.source(SOURCE), flags=ASYNCHRONOUS))
    box.advance(ticket, State.STARTED)
    box.advance(ticket, State.FAILED)
    box.event("missing", group="0", sequence=1, missing=[0])
    box.close()
    read = read_black_box(box.path)
    assert (read.rank, read.world_size, read.mode, read.pid, read.problems) == (1, 2, "record", os.getpid(), ())
    assert (read.groups, read.signatures, read.sources[0]) == ((GROUP,), (CALL,), SOURCE)
    record = read.record(0)
    assert (record.group, record.sequence, record.call, record.source) == ("0", 1, CALL, SOURCE)
    assert (record.state, record.asynchronous, record.p2p_sequence) == (State.FAILED, True, 0)
    assert 0 < read.created_ns <= record.scheduled_ns <= record.started_ns <= record.finished_ns <= read.closed_ns
    assert [(event.kind, event.data["missing"]) for event in read.events] == [("missing", [0])]


def test_signatures_and_sources_are_interned_and_groups_are_not(tmp_path):
    box = make(tmp_path / "box")
    assert [box.signature(CALL), box.signature(CALL)] == [0, 0]
    assert [box.source(SOURCE), box.source(Source("a.py", 1, "f"))] == [0, 1]
    assert [box.group(GROUP), box.group(GROUP)] == [0, 1]
    assert read_black_box(box.path).groups == (GROUP, GROUP)


def test_a_record_may_get_another_signature(tmp_path):
    box = make(tmp_path / "box")
    box.group(GROUP)
    first, *_, last = fill(box, 20)
    known = Call("recv", "recv_anysource", (), CALL.outputs, peer=1)
    for ticket in (first, last, NO_TICKET):
        box.resign(ticket, box.signature(known))
    box.resign(last - 1, layout.ABSENT)
    read = read_black_box(box.path)
    assert [read.record(index).call for index in range(16)] == [CALL] * 15 + [known]
    assert read.problems == ()


def test_a_ring_that_wrapped_says_what_it_dropped(tmp_path):
    box = make(tmp_path / "box")
    box.group(GROUP)
    box.group(Group("1", "half", (0,)))
    tickets = fill(box, 5, group=1) + fill(box, 35)
    box.advance(tickets[0], State.STARTED)
    box.advance(tickets[-1])
    read = read_black_box(box.path)
    assert read.dropped == {0: 19, 1: 5}
    assert read.slots["sequence"].tolist() == list(range(20, 36))
    assert (read.record(15).state, read.record(0).state) == (State.COMPLETED, State.SCHEDULED)
    assert read.problems == ()


def test_send_and_receive_are_dropped_by_their_own_count(tmp_path):
    box = make(tmp_path / "box")
    box.group(GROUP)
    for number in range(1, 21):
        box.schedule(Slot(0, 0, box.signature(CALL), box.source(SOURCE), p2p_sequence=number))
    read = read_black_box(box.path)
    assert (dict(read.dropped), read.dropped_p2p) == ({}, {0: 4})


def test_more_groups_than_rows_count_as_dropped_where_the_ring_wrapped(tmp_path, monkeypatch):
    monkeypatch.setattr(layout, "GROUP_ROWS", 1)
    box = make(tmp_path / "box")
    box.group(GROUP)
    box.group(Group("1", "", (0,)))
    fill(box, 20, group=1)
    assert read_black_box(box.path).dropped == {1: 4}


def test_threads_write_side_by_side(tmp_path):
    box = make(tmp_path / "box", records=4096)
    box.group(GROUP)

    def work():
        for ticket in fill(box, 500):
            box.advance(ticket, State.STARTED)
            box.advance(ticket)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    read = read_black_box(box.path)
    assert (len(read.slots), read.problems) == (2000, ())
    assert (read.slots["state"] == State.COMPLETED).all()


def test_a_forked_child_does_not_write_into_its_parents_box(tmp_path):
    box = make(tmp_path / "box")
    box.group(GROUP)
    ticket = fill(box, 1)[0]
    child = os.fork()
    if child == 0:
        box.advance(ticket)
        box.event("exit")
        os._exit(box.schedule(Slot(0, 2, 0, 0)) != NO_TICKET)
    assert os.waitpid(child, 0)[1] == 0
    read = read_black_box(box.path)
    assert (len(read.slots), read.events, read.record(0).state) == (1, (), State.SCHEDULED)


def test_a_closed_box_takes_no_more(tmp_path):
    box = make(tmp_path / "box")
    box.group(GROUP)
    box.close()
    box.close()
    box.event("exit")
    assert box.schedule(Slot(0, 1, 0, 0)) == NO_TICKET
    assert box.signature(CALL) == layout.ABSENT == box.group(GROUP)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGABRT, signal.SIGSEGV])
def test_records_survive_a_signal(tmp_path, number):
    program = f"""
        import os
        from simcoll.blackbox import BlackBoxWriter, Slot
        from simcoll.spec.call import Call
        from simcoll.core.record import Group, Source
        box = BlackBoxWriter({str(tmp_path / "box")!r}, rank=0, world_size=1, mode="record")
        box.group(Group("0", "", (0,)))
        for sequence in range(1, 100_001):
            signature, source = box.signature(Call("barrier", "barrier")), box.source(Source("a.py", 1, "f"))
            box.schedule(Slot(0, sequence, signature, source))
        os.kill(os.getpid(), {int(number)})
    """
    ended = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, check=False)
    assert ended.returncode == -number
    read = read_black_box(tmp_path / "box")
    assert (read.record(-1).sequence, len(read.slots), read.dropped) == (100_000, 65_536, {0: 34_464})
    assert (read.closed_ns, read.problems) == (0, ())


def test_an_older_box_is_replaced_not_written_into(tmp_path):
    old = make(tmp_path / "box")
    old.group(GROUP)
    new = make(tmp_path / "box", world_size=3)
    fill(old, 3)
    assert new.path == old.path
    assert (read_black_box(new.path).world_size, len(read_black_box(new.path).slots)) == (3, 0)
    assert [path.name for path in tmp_path.iterdir()] == ["box"]


def test_what_json_does_not_know_is_written_as_text_and_long_texts_are_clipped(tmp_path):
    box = make(tmp_path / "box")
    box.event("exception", value=Path("x"), message="é" * (2 << 20), broken="\ud800")
    data = read_black_box(box.path).events[0].data
    assert (data["value"], len(data["message"]), data["broken"]) == ("x", 10_000, "\ud800")


@pytest.mark.parametrize("records", ["0", "15", "4194305", "many", "-3", "²", "9" * 30])
def test_a_wrong_number_of_records_is_refused(tmp_path, monkeypatch, records):
    monkeypatch.setenv("SIMCOLL_RECORDS", records)
    with pytest.raises(BlackBoxError, match="expected a whole number from 16 to 4194304"):
        make(tmp_path / "box", records=None)


def test_the_environment_sets_the_number_of_records(tmp_path, monkeypatch):
    monkeypatch.setenv("SIMCOLL_RECORDS", "16")
    box = make(tmp_path / "box", records=None)
    box.group(GROUP)
    fill(box, 17)
    assert len(read_black_box(box.path).slots) == 16


def test_no_room_at_creation_says_so_and_leaves_nothing(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(BlackBoxError, match=r"No space left on device.*choose another folder") as caught:
        make(tmp_path / "box")
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(tmp_path / "box"))
    assert list(tmp_path.iterdir()) == []


def test_a_file_system_that_cannot_reserve_gets_zeros(tmp_path, monkeypatch):
    def unsupported(*_):
        raise OSError(errno.EOPNOTSUPP, "not supported")

    monkeypatch.setattr(os, "posix_fallocate", unsupported)
    box = make(tmp_path / "box")
    assert box.path.stat().st_size == layout.initial_size(16)
    assert read_black_box(box.path).problems == ()


def test_a_disk_that_fills_up_costs_one_warning_and_no_record(tmp_path, monkeypatch, capsys):
    box = make(tmp_path / "box")
    box.group(GROUP)
    fill(box, 1)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    unknown = box.signature(Call("barrier", "barrier"))
    box.schedule(Slot(0, 2, unknown, 0))
    box.event("exit")
    box.schedule(Slot(0, 3, 0, 0))
    assert unknown == layout.ABSENT
    assert capsys.readouterr().err.count("No space left on device; the job goes on") == 1
    read = read_black_box(box.path)
    # The call that could not be named counts as dropped, with all before it: it never looks like one not made.
    assert (read.dropped, read.slots["sequence"].tolist()) == ({0: 2}, [3])
    assert any("2 entries were not written" in problem for problem in read.problems)


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_a_full_file_system_never_ends_the_rank(tmp_path, capfd):
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(tmp_path)], check=False)
    if mounted.returncode != 0:
        pytest.skip("this machine does not let root mount a tmpfs")
    try:
        with pytest.raises(BlackBoxError, match="No space left on device"):
            make(tmp_path / "large", records=65_536)
        box = make(tmp_path / "box")
        box.group(GROUP)
        for line in range(20_000):
            source = box.source(Source("a.py", line, "f", "x" * 100))
            box.advance(box.schedule(Slot(0, line + 1, box.signature(CALL), source)))
    finally:
        subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)
    assert capfd.readouterr().err.count("the job goes on") == 1


def test_the_table_is_bounded_and_keeps_room_for_last_words(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(layout, "TABLE_LIMIT", 8192)
    monkeypatch.setattr(layout, "TABLE_RESERVE", 4096)
    box = make(tmp_path / "box")
    for number in range(100):
        box.event("rejected", message="x" * 100, number=number)
    box.event("exception", message="the last")
    kinds = [event.kind for event in read_black_box(box.path).events]
    assert kinds[-1] == "exception"
    assert 10 < kinds.count("rejected") < 40
    assert capsys.readouterr().err.count("its table of entries is full") == 1


def damaged(tmp_path, change):
    box = make(tmp_path / "box")
    box.group(GROUP)
    fill(box, 10)
    box.event("exit")
    data = bytearray(box.path.read_bytes())
    change(data)
    box.path.write_bytes(data)
    return box.path


RING = layout.ring_offset(layout.GROUP_ROWS)


def test_a_torn_last_slot_is_left_out(tmp_path):
    def tear(data):
        data[RING + 9 * 64 + 56 : RING + 10 * 64] = bytes(8)

    read = read_black_box(damaged(tmp_path, tear))
    assert (read.slots["sequence"].tolist(), read.dropped, read.problems) == (list(range(1, 10)), {}, ())


def test_a_damaged_slot_in_the_middle_hides_what_came_before(tmp_path):
    def tear(data):
        data[RING + 4 * 64] ^= 0xFF

    read = read_black_box(damaged(tmp_path, tear))
    assert (read.slots["sequence"].tolist(), read.dropped) == ([6, 7, 8, 9, 10], {0: 5})
    assert "record 5 cannot be read" in read.problems[0]


def test_a_damaged_entry_costs_itself(tmp_path):
    def damage(data):
        data[data.index(b"train.py")] ^= 0xFF

    read = read_black_box(damaged(tmp_path, damage))
    assert (len(read.slots), len(read.events), read.record(0).source.file) == (10, 1, "")
    assert "damaged" in read.problems[0]


def test_a_file_that_was_cut_gives_what_is_left(tmp_path):
    def cut(data):
        del data[RING + 5 * 64 :]

    read = read_black_box(damaged(tmp_path, cut))
    assert len(read.slots) == 0
    assert "the end of the file is missing" in read.problems


@pytest.mark.parametrize("blank", [2048, 5 * 1024, 30_000])
def test_a_blank_in_the_ring_is_not_its_end(tmp_path, blank):
    box = make(tmp_path / "box", records=65_536)
    box.group(GROUP)
    fill(box, 40_000)
    data = bytearray(box.path.read_bytes())
    data[RING + 1024 * 64 : RING + (1024 + blank) * 64] = bytes(blank * 64)
    box.path.write_bytes(data)
    read = read_black_box(box.path)
    assert (int(read.slots["sequence"][0]), read.record(-1).sequence) == (1024 + blank + 1, 40_000)
    assert read.dropped == {0: 1024 + blank}


@pytest.mark.parametrize("field", ["group", "sequence", "p2p_sequence", "signature", "source"])
def test_no_bit_of_a_call_flips_unseen(tmp_path, field):
    slots = np.zeros(64, SLOT_DTYPE)
    slots["group"], slots["sequence"], slots["signature"], slots["source"], slots["p2p_sequence"] = 1, 70_000, 3, 5, 0
    stated = [seal(*(int(slots[0][name]) for name in ("group", "sequence", "p2p_sequence", "signature", "source")))]
    slots["seal"], slots["index"], slots["finished_ns"], slots["state"] = stated, 1, 1, State.COMPLETED
    assert intact(slots).all()
    slots[field][:32] ^= np.uint32(1) << np.arange(32, dtype=np.uint32)
    assert intact(slots).tolist() == [False] * 32 + [True] * 32


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "found an empty file, expected a black box"),
        (b"\x80\x04}", "begins with"),
        (layout.MAGIC + b"\x01\0\0\0", "expected a header of 4096"),
        (layout.MAGIC + b"\x07\0\0\0" + bytes(8192), "format 7, expected 1"),
        (layout.MAGIC + b"\x01\0\0\0" + b"\xff" * 8192, "checksum or sizes"),
    ],
)
def test_what_is_no_black_box_is_refused_in_one_line(tmp_path, content, text):
    path = tmp_path / "box"
    path.write_bytes(content)
    with pytest.raises(UnreadableError, match=text) as caught:
        read_black_box(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_a_missing_file_a_folder_and_a_pipe_are_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "none", tmp_path, tmp_path / "pipe", "nul\0byte"):
        with pytest.raises(UnreadableError):
            read_black_box(path)
        assert last_activity(path) is None


@pytest.mark.parametrize(("ranks", "read"), [(layout.MAX_RANKS, True), (layout.MAX_RANKS + 1, False)])
def test_a_world_larger_than_any_is_refused(tmp_path, ranks, read):
    path = tmp_path / "box"
    BlackBoxWriter(path, rank=0, world_size=ranks, mode="record", records=16).close()
    if read:
        assert read_black_box(path).world_size == ranks
    else:
        with pytest.raises(UnreadableError, match="sizes are wrong"):
            read_black_box(path)


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    box = make(tmp_path_factory.mktemp("fuzz") / "box")
    box.group(GROUP)
    fill(box, 20)
    box.event("exception", type="ValueError", message="x")
    data = box.path.read_bytes()
    return data[: len(data.rstrip(b"\0")) + 64]


@pytest.mark.slow
@settings(max_examples=drawn(400), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_random_damage_raises_nothing_but_unreadable(tmp_path, sound, data):
    written = bytearray(sound)
    header, ring = st.integers(0, 255), st.integers(RING, len(sound) - 1)
    for _ in range(data.draw(st.integers(1, 12))):
        start = data.draw(st.one_of(header, ring, ring))
        patch = data.draw(st.binary(min_size=1, max_size=24))
        written[start : start + len(patch)] = patch
    if data.draw(st.booleans()):
        del written[data.draw(st.integers(0, len(written))) :]
    if data.draw(st.booleans()):
        # A header that is wrong but sealed: the checksum is no protection against a hostile file.
        crc = layout.HEADER_CRC_OFFSET
        written[crc : crc + 4] = zlib.crc32(written[:crc]).to_bytes(4, "little")
    path = tmp_path / "box"
    path.write_bytes(written)
    try:
        read = read_black_box(path)
    except UnreadableError:
        return
    for index in range(len(read.slots)):
        read.record(index)
    assert (read.slots["group"] < max(len(read.groups), 1)).all()


def test_a_device_tells_when_it_began_and_ended_a_call(tmp_path):
    writer = make(tmp_path / "box.simcoll")
    group = writer.group(GROUP)
    tickets = [writer.schedule(Slot(group, number, 0, 0, state=State.STARTED)) for number in (1, 2, 3)]
    made = time.time_ns()
    writer.ran_on_device(tickets[0], made + 1_000, made + 5_000)
    writer.ran_on_device(tickets[1], 7)
    writer.advance(tickets[2], State.FAILED)
    writer.ran_on_device(tickets[2], made, made + 1)
    writer.ended_on_device(tickets[2])
    ended, runs, failed = writer_slots(tmp_path / "box.simcoll")[:3]
    assert (ended["state"], ended["flags"] & layout.ON_DEVICE) == (State.COMPLETED, layout.ON_DEVICE)
    assert (int(ended["started_ns"]), int(ended["finished_ns"])) == (made + 1_000, made + 5_000)
    # No clock of a device makes a call begin before it was made.
    assert (runs["state"], runs["started_ns"], runs["finished_ns"]) == (State.STARTED, runs["scheduled_ns"], 0)
    assert (failed["state"], failed["flags"] & layout.ON_DEVICE) == (State.FAILED, 0)
    writer.ran_on_device(tickets[1], 7, 9)
    assert int(writer_slots(tmp_path / "box.simcoll")[1]["finished_ns"]) - int(runs["scheduled_ns"]) == 2
    for number in range(4, 40):
        writer.schedule(Slot(group, number, 0, 0))
    writer.ran_on_device(tickets[0], made, made + 1)
    writer.ended_on_device(tickets[0])
    assert not any(slot["flags"] & layout.ON_DEVICE for slot in writer_slots(tmp_path / "box.simcoll"))


def writer_slots(path):
    """The ring as it is in the file, whatever the tables say."""
    ring = layout.ring_offset(layout.GROUP_ROWS)
    return np.frombuffer(path.read_bytes()[ring : ring + 16 * layout.SLOT.size], SLOT_DTYPE)
