"""Source lines in a black box: with their callers, from files without any, and from files that state nonsense."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from simcoll.blackbox import BlackBoxWriter, Slot, read_black_box
from simcoll.blackbox.format import EntryKind
from simcoll.blackbox.memory_box import MemoryBox
from simcoll.blackbox.reader_wire import Receiver, Sender
from simcoll.blackbox.table import encode, pack_entry, read_entries
from simcoll.core.record import FRAME_LIMIT, Group, Source
from simcoll.core.source_roots import Roots, own_roots
from simcoll.spec.call import Call

LINE = Source("utils.py", 6, "mean", "dist.all_reduce(t)")
CALLERS = (Source("train.py", 17, "step", "mean(loss)"), Source("train.py", 30, "main", "step()"))
STACKS = [
    replace(LINE, callers=CALLERS),
    replace(LINE, callers=CALLERS[1:], through=(Source("p.py", 1, "fit", ""),)),
    LINE,
]


def box(path: Path) -> BlackBoxWriter:
    return BlackBoxWriter(path, rank=0, world_size=1, mode="record", records=16)


def test_stacks_of_one_line_are_entries_of_their_own_and_come_back(tmp_path: Path) -> None:
    writer = box(tmp_path / "rank00000.simcoll")
    group, call = writer.group(Group("0", "", (0,))), writer.signature(Call("barrier", "barrier"))
    found = [writer.source(source) for source in (*STACKS, *map(replace, STACKS))]
    for number, index in enumerate(found[:3], 1):
        writer.schedule(Slot(group, number, call, index))
    writer.close()
    assert found == [0, 1, 2, 0, 1, 2]
    read = read_black_box(tmp_path / "rank00000.simcoll")
    assert [read.record(row).source.stack for row in range(3)] == [source.stack for source in STACKS]
    assert Roots.of(read.about["roots"]) == own_roots()


def test_a_box_in_memory_keeps_them_too() -> None:
    kept = MemoryBox(0, 1, "record")
    assert [kept.source(source) for source in (*STACKS, *STACKS)] == [0, 1, 2, 0, 1, 2]
    assert [source.stack for source in kept.trace().sources] == [source.stack for source in STACKS]


def entry(**document: object) -> Source:
    table = pack_entry(
        EntryKind.SOURCE, 0, encode({"file": "a.py", "line": 3, "function": "f", "code": "g()", **document})
    )
    return read_entries(table).sources[0]


def test_an_entry_of_an_older_file_has_no_callers() -> None:
    assert (entry(), entry().callers) == (Source("a.py", 3, "f", "g()"), ())


@pytest.mark.parametrize("callers", [None, 7, "a.py", {}, [7], [[]], [["a", "b", "c", "d"]], [["a", 1, 2, ""]]])
def test_callers_that_make_no_sense_cost_themselves(callers: object) -> None:
    assert (entry(callers=callers, through=callers).stack) == (Source("a.py", 3, "f", "g()"),)


def test_callers_without_end_are_cut() -> None:
    frame: list[object] = ["a.py", 1, "f", ""]
    for _ in range(100):
        frame = ["a.py", 1, "f", "", [frame]]
    found = entry(callers=[frame] * 100)
    assert len(found.callers) == FRAME_LIMIT
    assert all(not one.callers for one in found.callers)


def test_reading_processes_send_each_stack(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    with pipe.open("wb", buffering=0) as out:
        Sender(out).send(tuple(STACKS))
    with pipe.open("rb", buffering=0) as back:
        received = Receiver(back, {}).receive()
    assert isinstance(received, tuple)
    assert [one.stack for one in received] == [source.stack for source in STACKS]


def test_a_header_without_room_leaves_out_the_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = Roots(("/" + "t" * 3900 + "/",), (), (), ())
    monkeypatch.setattr("simcoll.blackbox.header.own_roots", lambda: long)
    box(tmp_path / "rank00000.simcoll").close()
    about = read_black_box(tmp_path / "rank00000.simcoll").about
    assert about["roots"] == {}
    assert json.dumps(about["host"])
