"""The summary of a job: how far its groups came, where its ranks are."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.verify_boxes import Job, write_job
from simcoll.blackbox.gather import gather
from simcoll.core.record import Event, Group, Record, Source, State
from simcoll.core.trace import LaunchOutcome, MemoryTrace, RankExit, Stall, Trace
from simcoll.spec.call import Buffer, Call
from simcoll.verifier.findings.finding import Activity, Summary
from simcoll.verifier.postmortem import judge
from simcoll.verifier.views import summary as summary_module
from simcoll.verifier.views.summary import progress_of
from tests.support.traces import trace_of

SECOND = 10**9
LINE = Source("train.py", 41, "step")
TENSORS = (Buffer((4,), "float32"),)
REDUCE = Call("all_reduce", "allreduce", TENSORS, TENSORS, reduce_op="sum")


def group(*ranks: int, name: str = "0", description: str = "default_pg") -> Group:
    return Group(name, description, ranks)


def call(number: int, state: State = State.COMPLETED, name: str = "0", **of: object) -> Record:
    at = number * SECOND
    return Record(name, number, REDUCE, LINE, state, scheduled_ns=at, **of)  # type: ignore[arg-type]


def job(groups: Sequence[Group], calls: dict[int, list[Record]], events: dict[int, list[Event]] | None = None) -> list:
    return [
        trace_of(rank, len(calls), groups, records, mode="record", events=(events or {}).get(rank, ()))
        for rank, records in calls.items()
    ]


def summary_of(traces: Sequence[MemoryTrace], *more: object) -> Summary:
    summary = judge(traces, *more).summary  # type: ignore[arg-type]
    assert summary is not None
    return summary


def test_ranks_that_wait_and_one_in_its_own_code() -> None:
    waits = [call(1), call(2), call(3, State.STARTED, awaited=True)]
    calls = dict.fromkeys(range(4), waits) | {2: [call(1), call(2)]}
    summary = summary_of(job([group(0, 1, 2, 3)], calls))
    assert [(place.ranks, place.activity, place.record.sequence, place.inside) for place in summary.places] == [
        ((0, 1, 3), Activity.WAITS, 3, True),
        ((2,), Activity.OWN_CODE, 2, False),
    ]
    assert summary.places[0].since_ns == 3 * SECOND
    (progress,) = summary.progress
    assert (progress.least, progress.most) == (call(2), call(2))
    assert (summary.world_size, summary.recorded, summary.kinds) == (4, 4, ("record",))
    assert (summary.begin_ns, summary.end_ns) == (SECOND, 3 * SECOND)


def test_groups_of_one_kind_are_one_line() -> None:
    pairs = [group(2 * n, 2 * n + 1, name=f"mesh{n}", description="mesh_tp") for n in range(3)]
    calls = {rank: [call(n, name=f"mesh{rank // 2}") for n in range(1, 3 + rank // 2)] for rank in range(6)}
    (progress,) = summary_of(job(pairs, calls)).progress
    assert (progress.description, progress.size, len(progress.groups)) == ("mesh_tp", 2, 3)
    assert (progress.least.sequence, progress.most.sequence) == (2, 4)
    assert progress.members == tuple(range(6))


def test_places_in_groups_of_one_kind_are_one() -> None:
    pairs = [group(2 * n, 2 * n + 1, name=f"mesh{n}", description="mesh_tp") for n in range(2)]
    calls = {rank: [call(1, State.STARTED, name=f"mesh{rank // 2}", awaited=True)] for rank in range(4)}
    (place,) = summary_of(job(pairs, calls)).places
    assert (place.ranks, place.groups) == ((0, 1, 2, 3), 2)


def test_the_place_of_ranks_that_are_alike_is_worked_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []
    record_at = summary_module.record_at

    def counted(trace: Trace, row: int) -> Record | None:
        looked.append(row)
        return record_at(trace, row)

    monkeypatch.setattr(summary_module, "record_at", counted)
    with tempfile.TemporaryDirectory() as folder:
        write_job(Job("correct", 64, 16), Path(folder) / "job")
        traces = gather([Path(folder) / "job"], workers=0).traces
    place = summary_of(traces).places[0]
    assert place.ranks == tuple(range(64))
    assert place.since_ns == min(int(one.slots["scheduled_ns"][-1]) for one in traces)
    # The place, and the least and the most progress.
    assert len(looked) <= 4


def test_how_processes_ended_is_said() -> None:
    raised = Event("exception", 9 * SECOND, {"type": "ValueError", "message": "no", "source": None})
    events = {0: [Event("exit", 9 * SECOND, {})], 1: [raised]}
    outcome = LaunchOutcome({0: RankExit(0, 9), 1: RankExit(1, 9), 2: RankExit(-15, 9, stopped=True)})
    traces = job([group(0, 1, 2)], {0: [call(1)], 1: [call(1)], 2: [call(1)]}, events)
    places = {place.ranks[0]: place for place in summary_of(traces, outcome).places}
    assert [places[rank].activity for rank in range(3)] == [Activity.ENDED, Activity.FAILED, Activity.OWN_CODE]
    assert (places[1].reason, places[2].process) == ("raised ValueError", "stopped")


def test_a_line_seen_from_outside_is_where_a_rank_is() -> None:
    stall = Stall(0, 9 * SECOND, {1: Source("data.py", 7, "load")}, busy=frozenset({1}))
    waits = [call(1), call(2, State.STARTED, awaited=True)]
    summary = summary_of(job([group(0, 1)], {0: waits, 1: [call(1)]}), None, stall)
    assert {place.ranks: place.line.file for place in summary.places} == {(0,): "", (1,): "data.py"}


def test_an_open_asynchronous_call_is_no_wait() -> None:
    (place,) = summary_of(job([group(0)], {0: [call(1, State.STARTED, asynchronous=True)]})).places
    assert place.activity is Activity.OPEN


def test_the_last_call_of_a_dump_need_not_be_waited_for() -> None:
    [trace] = job([group(0)], {0: [call(1), call(2, State.SCHEDULED, awaited=True)]})
    [place] = summary_of([replace(trace, unknown=frozenset({"state"}), seen_ns=2 * SECOND + 1)]).places
    assert place.activity is Activity.OPEN


def test_ranks_without_a_record_are_told() -> None:
    traces = job([group(0, 1)], {0: [call(1)]})
    summary = summary_of(traces, LaunchOutcome({0: RankExit(0, 9), 1: RankExit(-9, 9)}))
    assert (summary.world_size, summary.recorded, summary.progress[0].unrecorded) == (2, 1, 1)
    assert [place.activity for place in summary.places if place.ranks == (1,)] == [Activity.FAILED]


def test_a_group_made_anew_counts_from_its_last_life() -> None:
    calls = {0: [call(1), call(2), call(3), call(1)], 1: [call(1), call(2), call(3), call(1), call(2)]}
    assert progress_of(job([group(0, 1)], calls))[0].least == call(1)
    calls = {0: [call(1), call(2)], 1: [call(1), call(2), call(1)]}
    assert progress_of(job([group(0, 1)], calls))[0].least is None


def test_a_life_that_has_an_entry_of_its_own_counts_alone() -> None:
    """A black box has an entry for each life, a dump one for all."""
    traces = []
    for trace in job([group(0, 1)], {rank: [call(1), *(call(n) for n in range(1, 4 + rank))] for rank in (0, 1)}):
        trace.slots["group"][1:] = 1
        traces.append(replace(trace, groups=trace.groups * 2))
    (progress,) = progress_of(traces)
    assert progress.least is not None
    assert progress.least.sequence == 3


def test_nothing_recorded_has_no_summary() -> None:
    assert judge([], LaunchOutcome({0: RankExit(1, 0)})).summary is None
    assert summary_of(job([], {0: []})).places[0].activity is Activity.UNSEEN


@pytest.mark.slow
@given(st.lists(st.sets(st.integers(2, 12)), min_size=1, max_size=5))
def test_the_last_finished_by_all_is_the_last_common_one(finished: list[set[int]]) -> None:
    """Collectives may end in any order, and on some ranks not at all."""
    states = [
        [call(n, State.COMPLETED if n in done else State.STARTED) for n in range(1, max(done, default=1) + 1)]
        for done in finished
    ]
    members = group(*range(len(finished)))
    (progress,) = progress_of(job([members], dict(enumerate(states))))
    common = set.intersection(*finished)
    assert (None if progress.least is None else progress.least.sequence) == max(common, default=None)


@pytest.mark.parametrize("column", ["group", "signature", "source"])
def test_rows_that_point_nowhere_are_no_error(column: str) -> None:
    (trace,) = job([group(0)], {0: [call(1), call(2)]})
    trace.slots[column] = np.iinfo(np.uint32).max
    summary_of([trace])
