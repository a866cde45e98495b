"""Black boxes of format version 1 are read: without marks of steps, and with the members of groups one by one."""

import zlib
from pathlib import Path

import pytest

from simcoll.blackbox import BlackBoxWriter, Slot, UnreadableError, read_black_box
from simcoll.blackbox import format as layout
from simcoll.blackbox.format import EntryKind
from simcoll.blackbox.header import unpack_header
from simcoll.blackbox.table import KnownEntries, encode, pack_entry
from simcoll.blackbox.tail import BoxTail
from simcoll.core.record import Group, Source, State
from simcoll.core.steps import StepMarks
from simcoll.spec.call import Call

SLOTS = 16
RING = layout.ring_offset(layout.GROUP_ROWS, marks=0)


def older(path: Path, steps: int) -> Path:
    """The file as version 1 has it, with so many marked steps."""
    data = path.read_bytes()
    header = unpack_header(data[: layout.PAGE], "")
    values = dict(
        zip([name for name, _ in layout.HEADER_FIELDS], layout.HEADER.unpack_from(data), strict=True),
        version=1,
        ring_offset=RING,
        table_offset=RING + SLOTS * layout.SLOT.size,
    )
    fields = layout.FIRST_HEADER.pack(*(values[name] for name, _ in layout.FIRST_HEADER_FIELDS))[:-4]
    page = bytearray(data[: layout.PAGE])
    page[: layout.HEADER.size] = bytes(layout.HEADER.size)
    page[: len(fields) + 4] = fields + zlib.crc32(fields).to_bytes(4, "little")
    group = pack_entry(EntryKind.GROUP, 0, b'{"name":"0","description":"default_pg","ranks":[0,1,2,3,4]}')
    table = data[header.table_offset :]
    size = len(pack_entry(EntryKind.GROUP, 0, encode({"name": "0", "description": "default_pg", "ranks": [[0, 5, 1]]})))
    marks = [{"kind": "step", "time_ns": 100 + step, "data": {"number": step}} for step in range(1, steps + 1)]
    events = b"".join(pack_entry(EntryKind.EVENT, 1 + place, encode(one)) for place, one in enumerate(marks))
    rows = data[layout.PAGE : layout.PAGE + layout.GROUP_ROWS * layout.GROUP.size]
    ring = data[header.ring_offset : header.table_offset]
    old = path.with_name("old.simcoll")
    rest = table[size:].rstrip(b"\0")
    old.write_bytes(page + rows + ring + group + rest + bytes(-len(rest) % 4) + events + bytes(256))
    return old


@pytest.fixture
def box(tmp_path: Path) -> BlackBoxWriter:
    made = BlackBoxWriter(tmp_path / "new.simcoll", rank=3, world_size=5, mode="check", records=SLOTS)
    group = made.group(Group("0", "default_pg", (0, 1, 2, 3, 4)))
    for sequence in range(1, 21):
        slot = Slot(group, sequence, made.signature(Call("barrier", "barrier")), made.source(Source("a.py", 3, "f")))
        made.advance(made.schedule(slot), State.COMPLETED)
    made.event("exit")
    for _ in range(4):
        made.step()
    return made


def test_both_versions_say_the_same(box: BlackBoxWriter) -> None:
    new, old = read_black_box(box.path), read_black_box(older(box.path, steps=4))
    assert (old.rank, old.world_size, old.mode, old.problems) == (3, 5, "check", ())
    assert (old.groups, old.signatures, old.sources) == (new.groups, new.signatures, new.sources)
    assert old.slots.tolist() == new.slots.tolist()
    assert (old.dropped, old.dropped_p2p) == (new.dropped, new.dropped_p2p)
    assert old.about == new.about
    assert old.alike == new.alike
    marks = StepMarks.of(old.events), StepMarks.of(new.events)
    assert [(one.ended, one.numbers.tolist()) for one in marks if one is not None] == [(4, [1, 2, 3, 4])] * 2


def test_a_live_look_reads_both_versions(box: BlackBoxWriter) -> None:
    for path in (box.path, older(box.path, steps=4)):
        tail = BoxTail(path, 8, KnownEntries())
        assert tail.look()
        found = tail.box()
        assert found is not None
        assert (tail.problem, tail.newest, found.groups[0].ranks) == ("", 20, (0, 1, 2, 3, 4))
        marks = StepMarks.of(found.events)
        assert marks is not None
        assert (marks.ended, marks.numbers.tolist()) == (4, [1, 2, 3, 4])
    # The next step shows in the next look.
    tail = BoxTail(box.path, 8, KnownEntries())
    tail.look()
    box.step()
    assert tail.look()
    newer = tail.box()
    assert newer is not None
    last = StepMarks.of(newer.events)
    assert last is not None
    assert last.ended == 5


@pytest.mark.parametrize("version", [0, 4, 2**32 - 1])
def test_other_versions_are_refused(box: BlackBoxWriter, version: int) -> None:
    data = bytearray(box.path.read_bytes())
    data[8:12] = version.to_bytes(4, "little")
    box.path.write_bytes(data)
    with pytest.raises(UnreadableError, match=f"format {version}, expected 1 to 3"):
        read_black_box(box.path)


def test_more_marks_than_there_are_places_for_are_damage(box: BlackBoxWriter) -> None:
    data = bytearray(box.path.read_bytes())
    at = layout.offset_of(layout.HEADER_FIELDS, "mark_count")
    data[at : at + 4] = (1 << 20).to_bytes(4, "little")
    crc = layout.HEADER_CRC_OFFSET
    data[crc : crc + 4] = zlib.crc32(data[:crc]).to_bytes(4, "little")
    box.path.write_bytes(data)
    with pytest.raises(UnreadableError, match="sizes are wrong"):
        read_black_box(box.path)
