"""The short way through a ring in which nothing lacks gives what the long way gives."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simcoll.blackbox import BlackBoxWriter, Slot, read_black_box
from simcoll.blackbox.format import ENTRY_MARKER, EntryKind, seals
from simcoll.blackbox.header import unpack_header
from simcoll.blackbox.ring_reader import SLOT_DTYPE, Course, _sound_slots, _whole_ring, read_ring
from simcoll.blackbox.table import KnownEntries, encode, pack_entry, read_entries
from simcoll.core.record import Event, Group, Source, State
from simcoll.spec.call import Call

CAPACITY = 8
GROUPS = [{"name": name, "description": "", "ranks": [0]} for name in "ab"]


def ring(records: int) -> np.ndarray:
    slots = np.zeros(CAPACITY, SLOT_DTYPE)
    for index in range(1, records + 1):
        place = (index - 1) % CAPACITY
        slots[place]["index"], slots[place]["check"] = index, index & 0xFFFFFFFF
        slots[place]["sequence"] = index
        slots[place]["state"] = index % 5
        slots[place]["finished_ns"] = index if index % 5 >= State.COMPLETED else 0
    slots["seal"] = np.where(slots["index"] > 0, seals(slots), 0)
    return slots


DAMAGE = st.tuples(
    st.integers(0, CAPACITY - 1), st.sampled_from(("index", "check", "state")), st.sampled_from((0, 1, 7, 200, 2**31))
)


@given(st.integers(0, 20), st.lists(DAMAGE, max_size=2), st.booleans())
def test_both_ways_agree(records, damage, cut):
    slots = ring(records)
    for place, field, value in damage:
        slots[place][field] = value if field != "state" else min(value, 255)
    slots = slots[: CAPACITY - 1] if cut else slots
    whole = _whole_ring(slots.copy(), CAPACITY)
    found, last_gap, newest = _sound_slots(slots.copy(), CAPACITY)
    if whole is not None:
        assert whole.tolist() == found.tolist()
        assert last_gap == 0
        assert newest == (int(whole["index"][-1]) if len(whole) else 0)
    if not damage and not cut:
        assert whole is not None


TIME = st.tuples(st.integers(0, CAPACITY - 1), st.sampled_from(("scheduled_ns", "finished_ns")), st.integers(0, 2))


@given(st.integers(0, 20), st.lists(DAMAGE | TIME, max_size=2))
def test_a_ring_reads_the_same_beside_one_of_the_same_calls(tmp_path_factory, records, changes):
    changed = ring(records)
    for place, field, value in changes:
        changed[place][field] = value if field != "state" else min(value, 255)
    path = tmp_path_factory.getbasetemp() / "ring"
    make = BlackBoxWriter(path, rank=0, world_size=1, mode="record", records=16)
    make.close()
    header = replace(unpack_header(path.read_bytes()[:4096], ""), slot_count=CAPACITY, ring_offset=0)

    def read(slots, courses):
        path.write_bytes(slots.tobytes())
        with path.open("rb") as file:
            found = read_ring(file.fileno(), header, courses)
        return found.slots.tolist(), found.last_gap, found.newest

    courses: dict[object, Course] = {}
    assert read(ring(records), courses) == read(ring(records), courses)
    assert len(courses) == (records > 0)
    assert read(changed, courses) == read(changed, {})


@pytest.mark.parametrize("index", [2**62 + 1, 2**63, 2**64 - 1])
def test_an_index_that_no_rank_comes_to_is_damage(index):
    slots = ring(3)
    slots[(index - 1) % CAPACITY]["index"], slots[(index - 1) % CAPACITY]["check"] = index, index & 0xFFFFFFFF
    found, _, newest = _sound_slots(slots, CAPACITY)
    assert newest <= 3
    assert index not in found["index"]


def test_what_files_have_in_common_is_one_object(tmp_path):
    for rank in (0, 1):
        box = BlackBoxWriter(tmp_path / f"{rank}", rank=rank, world_size=2, mode="record", records=16)
        box.schedule(Slot(box.group(Group("0", "", (0, 1))), 1, box.signature(Call("barrier", "barrier")), 0))
        box.source(Source("train.py", 3, "step"))
        box.close()
    known = KnownEntries()
    first, second = (read_black_box(tmp_path / f"{rank}", known) for rank in (0, 1))
    assert first.groups[0] is second.groups[0]
    assert first.signatures[0] is second.signatures[0]
    assert first.sources[0] is second.sources[0]
    assert (first.signatures, first.sources) == (second.signatures, second.sources)
    assert first.signatures is second.signatures
    assert first.sources is second.sources


def test_two_entries_of_one_index_change_no_other_file():
    known, other = KnownEntries(), Call("broadcast", "broadcast")
    first, second = (
        pack_entry(EntryKind.SIGNATURE, 0, encode(call.to_json())) for call in (Call("barrier", "barrier"), other)
    )
    assert read_entries(first + second, known).signatures == {0: Call("barrier", "barrier")}
    assert read_entries(second, known).signatures == {0: other}


LINES = [
    pack_entry(EntryKind.SOURCE, index, encode({"file": "train.py", "line": line, "function": "", "code": ""}))
    for index in range(6)
    for line in (1, 2)
]
PARTS = [
    *LINES,
    *(pack_entry(EntryKind.GROUP, 0, encode(group)) for group in GROUPS),
    *(pack_entry(EntryKind.SIGNATURE, 0, encode(Call(op, op).to_json())) for op in ("barrier", "broadcast")),
    pack_entry(EntryKind.EVENT, 0, encode({"kind": "exit", "time_ns": 1, "data": {}})),
]
RUN = b"".join([LINES[0], LINES[2], LINES[4], LINES[6], LINES[8]])


@given(
    st.lists(
        st.tuples(*(st.lists(st.sampled_from(PARTS), max_size=4),) * 2, st.integers(-4, 4)), min_size=1, max_size=4
    )
)
def test_entries_that_files_have_in_a_row_are_read_as_they_are(tables):
    known = KnownEntries()
    read_entries(PARTS[len(LINES)] + RUN + PARTS[-1], known)
    assert known.run.data == RUN
    for table in (_table(*parts) for parts in tables):
        alone, together = read_entries(table), read_entries(table, known)
        for kind in ("groups", "signatures", "sources", "events", "damaged"):
            assert getattr(together, kind) == getattr(alone, kind)


def _table(before, behind, damage):
    """The run between other entries; a positive number breaks one in it, a negative one behind it."""
    table = bytearray(b"".join(before) + RUN + b"".join(behind))
    if damage:
        place = len(b"".join(before)) + damage * 17 if damage > 0 else damage
        table[place] ^= 1
    return bytes(table)


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(("creating", "created", "destroyed")),
        st.dictionaries(st.text(max_size=3), st.one_of(st.integers(-3, 3), st.text(max_size=3), st.none()), max_size=3),
    ),
    max_size=6,
)


@given(EVENTS)
def test_events_that_ranks_have_in_common_are_read_as_they_are(events):
    times = [10**18 + place for place in range(len(events))]
    payloads = [
        encode({"kind": kind, "time_ns": time, "data": data}) for (kind, data), time in zip(events, times, strict=True)
    ]
    table = b"".join(pack_entry(EntryKind.EVENT, place, payload) for place, payload in enumerate(payloads))
    known = KnownEntries()
    for _ in range(2):
        entries = read_entries(table, known)
        assert list(entries.events.values()) == [
            Event(kind, time, data) for (kind, data), time in zip(events, times, strict=True)
        ]
        assert entries.damaged == []


@pytest.mark.parametrize(
    "payload", [b'{"kind":"created","time_ns":1,"data":{"a":1}', b'{"kind":"created","time_ns":1,"data":{}}x']
)
def test_a_malformed_making_is_named(payload):
    entries = read_entries(pack_entry(EntryKind.EVENT, 0, payload))
    assert entries.events == {}
    assert entries.damaged == ["entry 0 of kind 4 is malformed (JSONDecodeError)"]


def test_a_table_of_nothing_but_damage_is_given_up():
    assert len(read_entries(ENTRY_MARKER * (1 << 18)).damaged) < 1 << 17


def test_blanks_between_entries_cost_nothing():
    first, second = (pack_entry(EntryKind.GROUP, place, encode(group)) for place, group in enumerate(GROUPS))
    entries = read_entries(bytes(40) + first + bytes(4000) + second + bytes(4000))
    assert sorted(entries.groups) == [0, 1]
    assert len(entries.damaged) == 2
