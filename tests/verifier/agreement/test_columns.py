"""Comparing ranks with equal columns together gives what adding up all words gives, without looking at each record."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simcoll.blackbox import BlackBoxWriter, Slot, read_black_box
from simcoll.blackbox.table import KnownEntries
from simcoll.core.record import Group, Record, Source, State
from simcoll.core.trace import MemoryTrace
from simcoll.spec.call import Buffer, Call
from simcoll.verifier.agreement.columns import GroupColumns, columns_of
from simcoll.verifier.agreement.mismatches import check_agreement
from simcoll.verifier.postmortem import judge
from tests.support.traces import trace_of


def reduced(elements: int = 4, dtype: str = "float32") -> Call:
    tensor = (Buffer((elements,), dtype),)
    return Call("all_reduce", "allreduce", tensor, tensor, reduce_op="sum")


def exchanged(sent: tuple[int, ...], received: tuple[int, ...]) -> Call:
    inputs, outputs = ((Buffer((sum(sizes),), "float32"),) for sizes in (sent, received))
    return Call("all_to_all", "alltoall_base", inputs, outputs, input_splits=sent, output_splits=received)


CALLS = (
    reduced(),
    reduced(dtype="float64"),
    reduced(8),
    Call("broadcast", "broadcast", (Buffer((2,), "int64"),), (Buffer((2,), "int64"),), root=0),
    exchanged((1, 2, 3), (1, 2, 3)),
    exchanged((2, 1, 3), (1, 2, 3)),
    exchanged((1, 1, 1), (1, 1, 1)),
    Call("barrier", "barrier"),
)
WORLD = Group("0", "default_pg", (0, 1, 2))


def traced(rank: int, calls: Sequence[tuple[int, int]], world: Group = WORLD) -> MemoryTrace:
    """A rank's trace from the sequence number and the call (by index) of each record."""
    records = [
        Record("0", sequence, CALLS[call], Source("train.py", call, "step"), State.COMPLETED, awaited=True)
        for sequence, call in calls
    ]
    return trace_of(rank, len(world.ranks), [world], records, mode="record")


def added_up(columns: GroupColumns) -> tuple[list[int], list[int]]:
    """The positions that all ranks came to and agree on, and those that are open, by adding up every word."""
    sequences = np.concatenate([part.sequences for part in columns.parts])
    words = np.concatenate([part.words(len(columns.group.ranks)) for part in columns.parts])
    digests = np.concatenate([part.digests for part in columns.parts])
    agreed, suspects = [], []
    for sequence in np.unique(sequences):
        here = sequences == sequence
        complete = int(here.sum()) == len(columns.group.ranks)
        alike = len(set(digests[here].tolist())) == 1 and 0 not in digests[here]
        good = words[here].sum(dtype=np.uint64) == 0 if complete else alike or here.sum() == 1
        agreed += [int(sequence)] if complete and good else []
        suspects += [] if good else [int(sequence)]
    return agreed, suspects


PROGRAM = st.lists(st.integers(0, len(CALLS) - 1), max_size=8)
EDIT = st.tuples(st.integers(0, 2), st.integers(0, 7), st.integers(0, len(CALLS) - 1))


@given(PROGRAM, st.lists(EDIT, max_size=3), st.sets(st.integers(0, 2), min_size=1), st.integers(0, 3), st.booleans())
def test_the_check_is_that_of_the_words(
    program: list[int], edits: list[tuple[int, int, int]], present: set[int], first: int, twice: bool
) -> None:
    traces = []
    for rank in sorted(present):
        calls = list(enumerate(program, 2))
        for odd, place, call in edits:
            if odd == rank and place < len(calls):
                calls[place] = (calls[place][0], call)
        calls = calls[first if rank == 1 else 0 :]
        traces.append(traced(rank, [*calls, *(calls[-1:] if twice and rank == 0 else [])]))
    for columns in columns_of(traces):
        agreed, suspects = added_up(columns)
        assert columns.check() == len(agreed)
        assert [suspect.sequence for suspect in columns.suspects()] == suspects


@given(st.lists(st.lists(st.integers(0, 2), min_size=3, max_size=3), min_size=1, max_size=12))
def test_positions_with_one_key_have_the_same_calls(program: list[list[int]]) -> None:
    traces = [traced(rank, [(place, calls[rank]) for place, calls in enumerate(program, 1)]) for rank in range(3)]
    (columns,) = columns_of(traces)
    columns.check()
    found: dict[bytes, list[int]] = {}
    for suspect in columns.suspects():
        stated = found.setdefault(suspect.key, program[suspect.sequence - 1])
        assert stated == program[suspect.sequence - 1]
    assert len(found) == len({tuple(calls) for calls in program if len(set(calls)) > 1})


@pytest.mark.parametrize("odd", [None, 1, 3])
def test_lives_of_a_group_are_compared_by_themselves(odd: int | None) -> None:
    """A job that makes its group anew, as a black box has it: an entry for each life, whose numbers begin anew."""
    traces = []
    for rank in range(3):
        calls = [0, 2, 3, 2]
        if rank == 1 and odd is not None:
            calls[odd] = 1
        trace = traced(rank, [*zip((1, 2, 1, 2), calls, strict=True)])
        trace.slots["group"][2:] = 1
        traces.append(replace(trace, groups=(WORLD, WORLD)))
    report = judge(traces)
    assert report.agreed == (4 if odd is None else 3)
    assert [(one.code, one.sequence, one.culprits) for one in report.findings] == (
        [] if odd is None else [("SC103", 2, (1,))]
    )


def job(ranks: int, records: int, bug: str) -> list[MemoryTrace]:
    world = Group("0", "default_pg", tuple(range(ranks)))
    traces = []
    for rank in range(ranks):
        calls = [(place, place % 4) for place in range(1, records + 1)]
        odd = rank == 1
        if bug == "dtype":
            calls = [(place, 1 if odd and call == 0 else call) for place, call in calls]
        if bug == "skipped" and odd:
            calls = [(place, (place + (place > 20)) % 4) for place in range(1, records)]
        traces.append(traced(rank, calls, world))
    if bug == "unwaited":
        for trace in traces:
            trace.slots["flags"] = 1
        traces = [replace(trace, events=()) for trace in traces]
    return traces


def calls_made(ranks: int, records: int, bug: str) -> int:
    """How many functions run, Python's and numpy's, to judge such a job."""
    traces, count = job(ranks, records, bug), 0

    def counted(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(counted)
    try:
        judge(traces)
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.slow
@pytest.mark.parametrize("bug", ["none", "unwaited"])
def test_records_are_not_looked_at_one_by_one(bug: str) -> None:
    calls_made(4, 100, bug)
    assert calls_made(4, 1600, bug) < 1.2 * calls_made(4, 400, bug)


@pytest.mark.slow
@pytest.mark.parametrize("bug", ["dtype", "skipped"])
def test_what_differs_again_and_again_costs_linear_work(bug: str) -> None:
    calls_made(4, 100, bug)
    assert calls_made(4, 3200, bug) < 2.2 * calls_made(4, 1600, bug)


@pytest.mark.slow
@pytest.mark.parametrize("bug", ["none", "dtype", "skipped", "unwaited"])
def test_the_work_grows_no_faster_than_the_ranks(bug: str) -> None:
    calls_made(4, 100, bug)
    assert calls_made(64, 100, bug) < 4.4 * calls_made(16, 100, bug)


def test_findings_of_equal_positions_are_counted() -> None:
    agreement = check_agreement(columns_of(traces := job(4, 401, "dtype")), traces)
    (found,) = agreement.mismatches
    assert found.finding.code == "SC103"
    assert found.finding.sequence == 4
    assert found.finding.message.endswith("(99 times more from these lines, the last time at collective 400)")


@pytest.mark.parametrize("call", [reduced(), exchanged((2, 2), (2, 2))], ids=["even", "with flows"])
def test_groups_whose_ranks_are_alike_are_compared_once(tmp_path, monkeypatch, call) -> None:
    added: list[GroupColumns] = []
    add_up = GroupColumns._add_up

    def counted(self, places) -> None:
        added.append(self)
        add_up(self, places)

    monkeypatch.setattr(GroupColumns, "_add_up", counted)
    for rank in range(8):
        first = rank - rank % 2
        box = BlackBoxWriter(tmp_path / f"rank{rank}.simcoll", rank=rank, world_size=8, mode="record", records=16)
        group, signature = box.group(Group(f"pair {first}", "", (first, first + 1))), box.signature(call)
        for number in (1, 2, 3):
            box.schedule(Slot(group, number, signature, box.source(Source("train.py", 1, "step"))))
        box.close()
    known = KnownEntries()
    traces = [read_black_box(tmp_path / f"rank{rank}.simcoll", known) for rank in range(8)]
    columns = columns_of(traces)
    assert len(columns) == 4
    assert check_agreement(columns, traces).agreed == 12
    assert len(added) == 1
