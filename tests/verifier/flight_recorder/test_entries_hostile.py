"""Hostile and damaged dumps: one clear line or what is readable; no traceback, no code that runs, little memory."""

from __future__ import annotations

import json
import os
import pickle
import struct
import subprocess
import sys
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simcoll.core.trace import record_at
from simcoll.verifier import flight_recorder
from simcoll.verifier.flight_recorder import UnreadableError, entries, jobs, pickle_machine, read_dump, traces_of
from simcoll.verifier.flight_recorder import dump as flight_recorder_dump
from simcoll.verifier.flight_recorder import entries as flight_recorder_entries
from simcoll.verifier.postmortem import judge
from tests.support.flight_dumps import WRITERS, document, entry, json_dump, plain, torch_pickle
from tests.support.seeds import drawn, nightly

MEMORY_LIMIT = 2 << 30


@pytest.fixture
def read(tmp_path):
    def read(data, name="nccl_trace_rank_0"):
        path = tmp_path / name
        path.write_bytes(data)
        return read_dump(path)

    return read


def outcome(data, folder):
    """A dump that can be judged, or the line that says why there is none."""
    path = folder / "nccl_trace_rank_0"
    path.write_bytes(data)
    try:
        dump = read_dump(path)
    except UnreadableError as error:
        line = str(error)
    else:
        pickle.loads(pickle.dumps(dump))
        (trace,) = traces_of([dump])
        assert all(record_at(trace, row) is not None for row in range(len(trace.slots)))
        judge([trace])
        return dump
    assert "\n" not in line
    return line


class Command:
    """Unpickled, it would make a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("place", ["alone", "as entries", "in an entry", "behind the entries"])
def test_nothing_in_a_pickle_is_ever_run(tmp_path, protocol, place):
    planted = Command(tmp_path / "ran")
    whole = plain(document([entry(0), entry(1)]))
    value = {
        "alone": planted,
        "as entries": {**whole, "entries": planted},
        "in an entry": {**whole, "entries": [whole["entries"][0], {**whole["entries"][1], "odd": planted}]},
        "behind the entries": {**whole, "odd": planted},
    }[place]
    outcome(pickle.dumps(value, protocol), tmp_path)
    assert not (tmp_path / "ran").exists()


def test_a_refusal_says_why(read):
    with pytest.raises(UnreadableError, match="names Python objects, which no dump does and which may run code"):
        read(pickle.dumps(Command("x")))


BOMBS = {
    "memo index": b"\x80\x02}r\xff\xff\xff\xff.",
    "memo text": b"}p99999999999\n.",
    "bytes of any size": b"\x80\x04\x8e" + struct.pack("<Q", 1 << 60),
    "bytearray of any size": b"\x80\x05\x96" + struct.pack("<Q", 1 << 60),
    "text of any size": b"\x80\x02X\xff\xff\xff\xffabc",
    "long text of any size": b"\x80\x04\x8d" + struct.pack("<Q", 1 << 63),
    "frame of any size": b"\x80\x04\x95" + struct.pack("<Q", 1 << 63) + b"}.",
    "number of any size": b"\x80\x02\x8b\xff\xff\xff\x7f" + b"\xff" * 100,
    "number of many digits": b"(I" + b"9" * 100_000 + b"\n.",
    "next buffer": b"\x80\x05\x97.",
    "extension": b"\x80\x02\x82\x01.",
    "deep lists": b"\x80\x02" + b"](" * 100_000,
    "deep tuples": b"\x80\x02)" + b"\x85" * 100_000 + b".",
    "deep key": b"\x80\x02}()" + b"\x85" * 100_000 + b"K\x01u.",
    "a tuple that doubles as key": b"\x80\x02}()" + b"q\x00h\x00\x86" * 60 + b"K\x01u.",
    "a list that holds itself": b"\x80\x02]q\x00h\x00a.",
    "a dict that holds itself": b"\x80\x02}q\x00(X\x07\x00\x00\x00entriesh\x00u.",
    "a list that doubles": b"\x80\x02" + b"".join(b"](h%ch%ce" % (n, n) + b"q%c" % (n + 1) for n in range(100)) + b".",
    "entries that are the dump": b"\x80\x02}q\x00(X\x07\x00\x00\x00entries](h\x00h\x00eu.",
    "marks": b"\x80\x02" + b"(" * 300_000,
    "lists": b"\x80\x02(" + b"]" * 300_000,
    "memos": b"\x80\x04]" + b"\x94" * 500_000,
    "pops": b"\x80\x02}(u" + b"0" * 10,
    "items without dict": b"\x80\x02](K\x01K\x02u.",
    "nothing to append": b"\x80\x02ee.",
    "json, deep": b'{"version": ' + b"[" * 1_000_000,
    "json, deep entry": b'{"version": "2.4", "entries": [' + b'{"a":' * 100_000,
    "json, a number of many digits": b'{"version": ' + b"9" * 1_000_000 + b"}",
    "json, a text without end": b'{"version": "' + b"x" * 3_000_000,
    "json, empty entries": b'{"version": "2.4", "entries": [' + b"{}," * 20_000,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_takes_little_memory_and_time(tmp_path, name):
    tracemalloc.start()
    try:
        outcome(BOMBS[name], tmp_path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 300 << 20


LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, ({limit}, {limit}))
from simcoll.verifier.flight_recorder import UnreadableError, read_dump
try:
    print(len(read_dump(sys.argv[1]).slots))
except UnreadableError as error:
    print(error)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "unit",
    [
        pytest.param(b"]", id="lists"),
        pytest.param(b"M\xff\xff", id="numbers", marks=nightly(True)),  # lists are as many, and larger
        pytest.param(b"}(M\xff\xffM\xff\xffu", id="dicts"),
        pytest.param(b"\x8c\x01\xf0", id="texts", marks=nightly(True)),
        pytest.param(b"N\x94", id="memos"),
        pytest.param(b"Nq\x01", id="one memo"),
    ],
)
def test_memory_is_bounded_on_a_large_hostile_file(tmp_path, unit):
    """As large as is read, all of it kept: the reader stops before the machine does."""
    path = tmp_path / "rank_0"
    path.write_bytes(b"\x80\x02}(X\x07\x00\x00\x00version](" + unit * ((128 << 20) // len(unit)))
    code = LIMITED.format(limit=MEMORY_LIMIT)
    ended = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=250)
    assert ended.returncode == 0, ended.stderr
    assert "more memory than any dump needs" in ended.stdout


def test_a_file_that_is_too_large_is_refused(tmp_path, monkeypatch, read):
    monkeypatch.setattr(flight_recorder, "SIZE_LIMIT", 100)
    with pytest.raises(UnreadableError, match="more than the 100 that are read"):
        read(torch_pickle(document([entry(0)])))


@pytest.mark.parametrize("limit", ["ENTRY_LIMIT", "CALL_LIMIT", "_BUFFER_LIMIT", "_LOOKED_LIMIT"])
def test_more_than_any_program_makes_is_not_kept(monkeypatch, read, limit):
    monkeypatch.setattr(flight_recorder_entries, limit, 5)
    found = read(torch_pickle(document([entry(n, input_sizes=[[n]], output_sizes=[[n]]) for n in range(50)])))
    assert 1 <= len(found.slots) <= 5
    assert not found.complete


def test_what_entries_share_is_bounded(monkeypatch, read):
    monkeypatch.setattr(pickle_machine, "BYTES_LIMIT", 4000)
    monkeypatch.setattr(pickle_machine, "_STEPS", 1)
    assert len(read(torch_pickle(document([entry(n) for n in range(500)]))).slots) == 500
    # Entries that state the numbers of their parts are all kept.
    assert not read(pickle.dumps(plain(document([entry(n) for n in range(500)])), 2)).complete


@pytest.mark.parametrize("limit", ["BYTES_LIMIT", "OPCODE_LIMIT", "CONTAINER_LIMIT"])
@pytest.mark.parametrize(
    ("opened", "refill"),
    [
        pytest.param(b"}(K\x01K\x02u", b"(X\x14\0\0\0%020d]u", id="the last dict opened was an entry"),
        pytest.param(b"", b"K\x01}s(X\x14\0\0\0%020d]u", id="the last dict opened is a value"),
    ],
)
def test_an_entry_that_is_a_memoized_dict_is_counted(monkeypatch, read, limit, opened, refill):
    """It grows with each time that it is handed on."""
    monkeypatch.setattr(pickle_machine, limit, 4000)
    monkeypatch.setattr(pickle_machine, "_STEPS", 1)
    entries = b"".join(b"h\x00" + refill % number for number in range(2500))
    found = read(b"\x80\x02}(X\1\0\0\0a}q\x00X\7\0\0\0entries](" + opened + entries + b"eu.")
    assert "more memory than any dump needs" in found.problems[0]


def test_a_list_that_all_entries_or_groups_share_is_not_looked_at_without_end(monkeypatch, read):
    monkeypatch.setattr(entries, "_FRAME_LIMIT", 1000)
    shared = [None] * 400
    whole = plain(document([entry(n) for n in range(5)]))
    for one in whole["entries"]:
        one["frames"] = [*shared, *one["frames"]]
    found = read(pickle.dumps(whole, 2))
    assert [found.sources[index].line for index in found.slots["source"]] == [31, 31, 0, 0, 0]
    monkeypatch.setattr(flight_recorder_dump, "_MEMBERS_LIMIT", 1000)
    whole["pg_config"] = {str(n): {"desc": "", "ranks": [*range(n, n + 400)]} for n in range(3)}
    with pytest.raises(UnreadableError, match="its groups have more than 1000 members"):
        read(pickle.dumps(whole, 4))


def test_a_large_world_has_few_default_groups(monkeypatch, read):
    monkeypatch.setattr(jobs, "_MOST_MEMBERS", 200)
    entries = [entry(n, process_group=(str(n), "default_pg"), collective_seq_id=1) for n in range(20)]
    found = read(
        torch_pickle(document(entries, pg_config={"x": {"name": "x", "desc": "", "ranks": "[0, 99]"}}, rank=0))
    )
    (trace,) = traces_of([found])
    assert sorted({len(group.ranks) for group in trace.groups}) == [1, 2, 100]
    assert sum(len(group.ranks) == 100 for group in trace.groups) == 2


WRONG = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.sampled_from(["", "x" * 5000])
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3), st.tuples(inner, inner)
    ),
    max_leaves=6,
)
"""A value of any type, where a dump has one of a certain type."""


@pytest.mark.slow
@settings(max_examples=drawn(300), deadline=None)
@given(st.data())
def test_values_of_the_wrong_type_in_any_field(tmp_path_factory, data):
    whole = plain(document([entry(n) for n in range(4)]))
    if data.draw(st.booleans()):
        holder = whole["entries"][data.draw(st.integers(0, 3))]
    else:
        holder = data.draw(st.sampled_from([whole, whole["pg_config"], whole["pg_config"]["0"], whole["pg_status"]]))
    holder[data.draw(st.sampled_from(sorted(holder)))] = data.draw(WRONG)
    folder = tmp_path_factory.getbasetemp()
    for writer in (torch_like, WRITERS["protocol 4"], WRITERS["protocol 0"], json_dump):
        try:
            found = writer(whole)
        except (TypeError, ValueError, KeyError, OverflowError, UnicodeEncodeError):
            continue
        outcome(found, folder)


def torch_like(value):
    try:
        return torch_pickle(value)
    except struct.error:
        raise ValueError("a number that torch's pickler cannot write") from None


SAMPLES = {
    name: WRITERS[name](document([entry(n, "nccl:broadcast" if n % 3 else "nccl:all_reduce") for n in range(12)]))
    for name in ("torch", "json", "protocol 0", "protocol 4")
}


@pytest.mark.slow
@settings(max_examples=drawn(400), deadline=None)
@given(st.sampled_from(sorted(SAMPLES)), st.data())
def test_a_damaged_file_gives_one_line_or_what_is_readable(tmp_path_factory, name, data):
    content = bytearray(SAMPLES[name])
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(content) - 1))
        content[place] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        del content[data.draw(st.integers(0, len(content))) :]
    outcome(bytes(content), tmp_path_factory.getbasetemp())


@pytest.mark.slow
@settings(max_examples=drawn(300), deadline=None)
@given(st.binary(max_size=200), st.sampled_from([b"", b"\x80\x02", b"\x80\x02}(X\x07\x00\x00\x00entries](}(", b"{"]))
def test_any_bytes_at_all(tmp_path_factory, content, head):
    outcome(head + content, tmp_path_factory.getbasetemp())


OPCODES = (
    *(b"(", b"}", b"]", b")", b"u", b"e", b"s", b"a", b"t", b"d", b"l", b"\x85", b"\x86", b"\x87", b"N", b"\x88"),
    *(b"K\x01", b"M\x01\x01", b"J\x01\x00\x00\x80", b"\x8a\x01\x05", b"q\x01", b"h\x01", b"\x94", b"h\x00", b"."),
    *(b"X\x07\x00\x00\x00entries", b"X\x0e\x00\x00\x00profiling_name", b"I1\n", b"G" + b"\x7f" * 8, b"V1\n"),
)


@pytest.mark.slow
@settings(max_examples=drawn(500), deadline=None)
@given(st.lists(st.sampled_from(OPCODES), max_size=60))
def test_any_opcodes_at_all(tmp_path_factory, opcodes):
    outcome(b"\x80\x02" + b"".join(opcodes), tmp_path_factory.getbasetemp())


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_a_file_cut_anywhere_gives_the_entries_before(tmp_path, name):
    whole = outcome(SAMPLES[name], tmp_path)
    for size in range(0, len(SAMPLES[name]) - 1, 7):
        found = outcome(SAMPLES[name][:size], tmp_path)
        if not isinstance(found, str):
            assert list(found.slots["sequence"]) == list(whole.slots["sequence"])[: len(found.slots)]
            assert found.problems


def test_an_entry_that_is_garbled_json_does_not_take_the_others_with_it(read):
    text = json.dumps(plain(document([entry(n) for n in range(10)]))).replace('"record_id": 7', '"record_id": 7x')
    found = read(text.encode())
    assert len(found.slots) == 7
    assert not found.complete


def test_what_was_read_of_a_damaged_job_is_judged(tmp_path):
    dumps = []
    for rank, cut in enumerate((1.0, 0.8)):
        data = torch_pickle(document([entry(n) for n in range(40)]))
        path = tmp_path / f"rank_{rank}"
        path.write_bytes(data[: int(len(data) * cut)])
        dumps.append(read_dump(path))
    assert any("the file ends before the dump does" in note for note in judge(traces_of(dumps)).notes)
