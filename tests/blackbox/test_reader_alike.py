"""A box that is like others is read in one compiled step, and gives what it gives alone."""

import shutil

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simcoll.blackbox import BlackBoxWriter, Slot, read_black_box
from simcoll.blackbox import format as layout
from simcoll.blackbox.reader import read_alike
from simcoll.blackbox.reader_pool import read_files
from simcoll.blackbox.table import KnownEntries
from simcoll.core.io import make_sparse
from simcoll.core.record import Group, Source, State
from simcoll.core.steps import StepMarks
from simcoll.core.trace import slot_times
from simcoll.spec.call import Buffer, Call
from tests.support.native import parts

CALLS = [
    Call("all_reduce", "allreduce", (Buffer((size,), "float32"),), (Buffer((size,), "float32"),), reduce_op="sum")
    for size in (4, 8)
]
RECORDS, SLOTS = 40, 4096


def write(path, rank, *, steps=0):
    """The box of a rank that makes the calls of all others, in one group of all and one of its pair."""
    box = BlackBoxWriter(path, rank=rank, world_size=8, mode="record", records=SLOTS)
    for place, group in enumerate((Group("0", "default_pg", tuple(range(8))), Group(f"pair{rank // 2}", "", (0, 1)))):
        box.event("creating", life=1, ordinal=place, ranks=[*group.ranks], source=["train.py", 3, "main", "new()"])
        box.group(group)
        box.event("created", life=1, ordinal=place)
    for number in range(RECORDS):
        source = box.source(Source("train.py", 10 + number % 3, "step", f"call_{number % 3}(x)"))
        slot = Slot(number % 2, number // 2 + 1, box.signature(CALLS[number % 2]), source)
        box.advance(box.schedule(slot), State.COMPLETED)
    for _ in range(steps):
        box.step()
    box.event("exit")
    box.close()
    return path


@pytest.fixture
def compiled():
    with parts("compiled"):
        yield


@pytest.fixture
def known(tmp_path, compiled):
    """What is known after two boxes."""
    known = KnownEntries()
    for rank in (0, 1):
        read_black_box(write(tmp_path / f"rank{rank}", rank), known)
    return known


def said(box):
    """All that a box states."""
    fields = {name: getattr(box, name) for name in box.__dataclass_fields__ if name not in ("slots", "captured")}
    marks = StepMarks.of(box.events)
    steps = None if marks is None else (marks.numbers.tolist(), marks.times.tolist(), marks.ended)
    events = [(one.kind, one.time_ns, one.data) for one in box.events if marks is None or one.kind != "steps"]
    slots = {"slots": box.slots.tolist(), "captured": box.captured.tolist(), "times": slot_times(box)}
    return fields | slots | {"events": events, "steps": steps}


@pytest.mark.parametrize("steps", [0, 3])
def test_a_box_that_is_like_others_is_read_in_one_step(tmp_path, known, steps):
    path = write(tmp_path / "rank3", 3, steps=steps)
    # The first of a pair tells its group.
    read_black_box(write(tmp_path / "rank2", 2), known)
    box = read_alike(str(path), known)
    assert box is not None
    alone = read_black_box(path)
    assert said(box) == said(alone)
    assert box.slots.dtype == alone.slots.dtype
    assert box.slots.flags.writeable
    assert box.groups is read_black_box(path, known).groups
    assert box.sources is read_black_box(path, known).sources


@pytest.mark.parametrize("rank", [1, 2])
def test_a_group_that_nobody_told_before_is_read_by_python(tmp_path, known, rank):
    path = write(tmp_path / f"box{rank}", rank)
    assert (read_alike(str(path), known) is None) == (rank == 2)


RING = layout.ring_offset(layout.GROUP_ROWS)
TABLE = RING + SLOTS * layout.SLOT.size
END = TABLE + 4000
PLACES = st.one_of(
    st.integers(0, 700), st.integers(RING, RING + (RECORDS + 2) * layout.SLOT.size), st.integers(TABLE, END)
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300, deadline=None)
@given(st.lists(st.tuples(PLACES, st.integers(0, 255)), max_size=3), st.none() | st.integers(0, END), st.booleans())
def test_a_damaged_box_reads_the_same_beside_others(tmp_path, known, changes, cut, sparse):
    sound, path = tmp_path / "sound", tmp_path / "damaged"
    if not sound.exists():
        write(sound, 1)
    shutil.copyfile(sound, path)
    with path.open("r+b") as file:
        for place, value in changes:
            file.seek(place)
            file.write(bytes([value]))
        if cut is not None:
            file.truncate(cut)
    if sparse:
        make_sparse(path)
    box = read_alike(str(path), known)
    if box is not None:
        assert said(box) == said(read_black_box(path))
    elif not changes and cut is None:
        raise AssertionError("a sound box was not read in one step")


def test_what_is_no_box_is_read_by_python(tmp_path, known):
    (tmp_path / "empty").touch()
    for name in (tmp_path / "empty", tmp_path, tmp_path / "absent", "with\0zero"):
        assert read_alike(str(name), known) is None


def test_files_read_the_same_with_and_without_the_compiled_part(tmp_path, known):
    paths = [write(tmp_path / f"rank{rank:05}.simcoll", rank, steps=rank % 2) for rank in range(8)]
    found = {}
    for kind in ("compiled", "python"):
        with parts(kind):
            found[kind] = [said(box) for box in read_files(paths, workers=0)]
    assert found["compiled"] == found["python"]
