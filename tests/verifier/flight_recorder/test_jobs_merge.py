"""Black boxes and Flight Recorder dumps of the same ranks as one job."""

from __future__ import annotations

import json
import os
import pickle
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from simcoll.blackbox import BlackBoxWriter, Slot
from simcoll.blackbox.format import AWAITED
from simcoll.blackbox.gather import RunRecords, gather
from simcoll.core.record import Group, Source, State
from simcoll.core.trace import DUMPED, ON_DEVICE, LaunchOutcome, RankExit, Trace
from simcoll.spec.call import Buffer, Call
from simcoll.verifier.findings.finding import Report
from simcoll.verifier.flight_recorder import read_dump, traces_of
from simcoll.verifier.flight_recorder.jobs import merge
from simcoll.verifier.postmortem import judge
from tests.support.flight_dumps import document, entry, torch_pickle

SECOND = 10**9
SIZE = 4
WORLD = Group("0", "default_pg", tuple(range(SIZE)))
BUFFER = (Buffer((4,), "float32", "cuda", 0),)


def all_reduce(reduce_op: str = "sum") -> Call:
    return Call("all_reduce", "allreduce", BUFFER, BUFFER, reduce_op=reduce_op)


class Rank:
    """One rank's box and dump, written side by side as a job would; ``stands_at`` is the first call that never ends."""

    def __init__(self, folder: Path, rank: int, *, boxed: bool = True, records: int = 64) -> None:
        self.folder, self.rank = folder, rank
        path = folder / f"rank{rank:05d}.simcoll"
        self.box = BlackBoxWriter(path, rank=rank, world_size=SIZE, mode="record", records=records) if boxed else None
        self.index = self.box.group(WORLD) if self.box is not None else 0
        self.entries: list[dict[str, object]] = []
        self.sequence = 0

    def call(self, state: str = "completed", *, seen: bool = True, call: Call | None = None, **fields: object) -> None:
        """Make a call; ``state`` is what the dump says of it, ``seen`` whether the box has seen its end."""
        call = call or all_reduce()
        self.sequence += 1
        if self.box is not None:
            line = self.box.source(Source("train.py", self.sequence, "step", "dist.all_reduce(x)"))
            ticket = self.box.schedule(
                Slot(self.index, self.sequence, self.box.signature(call), line, state=State.STARTED)
            )
            self.box.mark(ticket, AWAITED)
            if seen and state == "completed":
                self.box.advance(ticket)
        now = time.time_ns()
        ended = now if state == "completed" else None
        about = {"input_sizes": [[4]], "output_sizes": [[4]], "time_created_ns": now, "state": state}
        about |= {"collective_seq_id": self.sequence, "retired": ended is not None}
        times = {"time_discovered_completed_ns": ended}
        self.entries.append(entry(self.sequence - 1, f"nccl:{call.op}", **about, **times, **fields))

    def dump(self, **fields: object) -> Path:
        path = self.folder / f"flight_recorder_rank_{self.rank}"
        path.write_bytes(torch_pickle(document(self.entries, ranks=range(SIZE), **fields)))
        return path


def job(
    folder: Path, *, unboxed: Sequence[int] = (), behind: int = 2, seen: bool = False, pause: float = 0.0
) -> list[Rank]:
    """Rank 3 makes 4 calls and no fifth; the others queue more. No box has seen an end where ``seen`` is False."""
    ranks = [Rank(folder, rank, boxed=rank not in unboxed) for rank in range(SIZE)]
    for rank in ranks:
        for _ in range(4):
            time.sleep(pause)
            rank.call(seen=seen)
        if rank.rank != 3:
            rank.call("started")
            for _ in range(behind):
                time.sleep(pause)
                rank.call("scheduled")
    return ranks


def judged(folder: Path, exits: int = -6, age: int = 20) -> tuple[Report, RunRecords]:
    evidence = gather([folder], workers=0)
    end = time.time_ns() + age * SECOND
    outcome = LaunchOutcome({rank: RankExit(exits, end + rank) for rank in range(SIZE)})
    return judge(evidence.traces, outcome), evidence


def states(trace: Trace) -> list[State]:
    return [State(state) for state in trace.slots["state"].tolist()]


def test_the_dump_says_how_far_the_device_came(tmp_path: Path) -> None:
    for rank in job(tmp_path):
        rank.dump()
    report, evidence = judged(tmp_path)
    assert (evidence.notes, evidence.unreadable) == ((), ())
    first = evidence.traces[0]
    assert states(first) == [State.COMPLETED] * 4 + [State.STARTED] * 3
    assert (first.slots["flags"] & ON_DEVICE).astype(bool).tolist() == [False] * 4 + [True] + [False] * 2
    assert first.signatures[0].reduce_op == "sum"
    assert first.unknown == frozenset()
    assert [event.kind for event in first.events] == [DUMPED]
    [finding] = report.findings
    assert (finding.code, finding.culprits, finding.sequence) == ("SC201", (3,), 5)


@pytest.mark.parametrize("unboxed", [(0,), (3,), (0, 3), (0, 1, 2)])
def test_ranks_without_a_black_box_are_told_of_by_their_dumps(tmp_path: Path, unboxed: Sequence[int]) -> None:
    for rank in job(tmp_path, unboxed=unboxed):
        rank.dump()
    report, evidence = judged(tmp_path)
    assert [trace.rank for trace in evidence.traces] == [0, 1, 2, 3]
    named = ", ".join(map(str, unboxed))
    assert evidence.notes == (f"of rank {named} there is no black box, only a Flight Recorder dump",)
    assert [(one.code, one.culprits, one.sequence) for one in report.findings] == [("SC201", (3,), 5)]


def test_dumps_alone_still_name_a_hang(tmp_path: Path) -> None:
    for rank in job(tmp_path, unboxed=range(SIZE)):
        path = rank.dump()
        late = time.time_ns() + 20 * SECOND + rank.rank * SECOND
        os.utime(path, ns=(late, late))
    evidence = gather([tmp_path], workers=0)
    [finding] = judge(evidence.traces).findings
    assert (finding.code, finding.culprits, finding.sequence) == ("SC201", (3,), 5)


def test_what_only_black_boxes_state_is_still_compared(tmp_path: Path) -> None:
    """A rank without a black box hides the reduce op of none of the others."""
    ranks = [Rank(tmp_path, rank, boxed=rank != 3) for rank in range(SIZE)]
    for rank in ranks:
        for number in range(6):
            rank.call(call=all_reduce("max" if (rank.rank, number) == (1, 3) else "sum"))
        rank.dump()
    evidence = gather([tmp_path], workers=0)
    findings = judge(evidence.traces).findings
    assert [(one.code, one.culprits, one.sequence) for one in findings] == [("SC104", (1,), 4)]
    clean = Path(tmp_path / "clean")
    clean.mkdir()
    for rank in [Rank(clean, rank, boxed=rank != 3) for rank in range(SIZE)]:
        for _ in range(6):
            rank.call()
        rank.dump()
    assert judge(gather([clean], workers=0).traces).findings == ()


def test_numbers_that_do_not_mean_the_same_are_not_put_together(tmp_path: Path) -> None:
    """A broadcast stands in the dump where the box has an all_reduce."""
    ranks = job(tmp_path)
    for rank in ranks:
        rank.entries[1]["profiling_name"] = "nccl:broadcast"
        rank.dump()
    report, evidence = judged(tmp_path)
    assert states(evidence.traces[0]) == [State.STARTED] * 7
    assert len(evidence.notes) == SIZE
    assert "numbers the calls of group 0 otherwise than its black box" in evidence.notes[0]
    assert [(one.code, one.culprits, one.sequence) for one in report.findings] == [("SC201", (3,), 5)]


def test_a_dump_that_counts_one_call_more_marks_nothing_as_ended_that_stands(tmp_path: Path) -> None:
    ranks = job(tmp_path, pause=0.008)
    for rank in ranks:
        early = {**rank.entries[0], "collective_seq_id": 1}
        later = [{**one, "collective_seq_id": number + 2} for number, one in enumerate(rank.entries)]
        rank.entries = [early, *later]
        rank.dump()
    report, evidence = judged(tmp_path)
    assert states(evidence.traces[0]) == [State.COMPLETED] * 4 + [State.STARTED] * 3
    assert [(one.code, one.culprits, one.sequence) for one in report.findings] == [("SC201", (3,), 5)]


def test_calls_that_a_graph_captured_count_for_the_backend_alone(tmp_path: Path) -> None:
    for rank in job(tmp_path, pause=0.002):
        for number, one in enumerate(rank.entries):
            one["collective_seq_id"] = number + 4
        rank.dump()
    _, evidence = judged(tmp_path)
    assert evidence.notes == ()
    assert states(evidence.traces[0]) == [State.COMPLETED] * 4 + [State.STARTED] * 3


def test_a_dump_of_another_run_is_left_out(tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.mkdir()
    for rank in job(old, unboxed=range(SIZE)):
        rank.dump().rename(tmp_path / f"nccl_trace_rank_{rank.rank}")
    job(tmp_path)
    _, evidence = judged(tmp_path)
    assert evidence.notes == ("4 Flight Recorder dumps of other runs were left out",)
    assert states(evidence.traces[0]) == [State.STARTED] * 7


def test_a_group_that_was_made_again_is_told_of_by_its_last_life(tmp_path: Path) -> None:
    ranks = job(tmp_path, seen=True)
    for rank in ranks:
        earlier = [{**one, "state": "completed"} for one in rank.entries]
        for one in earlier:
            one["time_created_ns"] = int(str(one["time_created_ns"])) - SECOND
        rank.entries = [*earlier, *rank.entries]
        rank.dump()
    report, _ = judged(tmp_path)
    assert [(one.code, one.culprits, one.sequence) for one in report.findings] == [("SC201", (3,), 5)]


def test_what_a_gloo_dump_says_of_ends_is_not_taken(tmp_path: Path) -> None:
    """A call that failed is retired there as well."""
    for rank in job(tmp_path):
        for one in rank.entries:
            one |= {"profiling_name": "gloo:all_reduce", "state": "scheduled", "retired": True}
        rank.dump()
    _, evidence = judged(tmp_path)
    assert states(evidence.traces[0]) == [State.STARTED] * 7


class _Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("exit 1",)


HOSTILE = {
    "runs code": pickle.dumps({"version": "2.10", "entries": [_Evil()]}),
    "cut": torch_pickle(document([entry(0), entry(1)]))[:300],
    "another version": json.dumps({"version": "1.5", "entries": []}).encode(),
    "no entries": json.dumps({"version": "2.10", "entries": {}}).encode(),
    "nested": b'{"version": "2.10", "entries": ' + b"[" * 4000,
    "huge numbers": json.dumps(document([entry(0, collective_seq_id=1 << 70)]), default=str).encode(),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_dumps_beside_boxes_cost_nothing_else(tmp_path: Path, kind: str) -> None:
    ranks = job(tmp_path)
    for rank in ranks[1:]:
        rank.dump()
    (tmp_path / "flight_recorder_rank_0").write_bytes(HOSTILE[kind])
    (tmp_path / "flight_recorder_rank_9").write_bytes(torch_pickle(document(ranks[0].entries, ranks=range(SIZE))))
    (tmp_path / "rank_3_notes.json").write_text('{"loss": [1, 2]}')
    (tmp_path / "config.json").write_text('{"version": "2.10", "entries": 3}')
    report, evidence = judged(tmp_path)
    assert [trace.rank for trace in evidence.traces] == [0, 1, 2, 3]
    assert any("of ranks that this job does not have" in note for note in evidence.notes)
    assert not any("config.json" in text or "notes" in text for text in evidence.unreadable)
    assert [(one.code, one.culprits, one.sequence) for one in report.findings] == [("SC201", (3,), 5)]


def test_a_merged_trace_says_until_when_its_rank_was_seen(tmp_path: Path) -> None:
    ranks = job(tmp_path)
    path = ranks[0].dump()
    later = time.time_ns() + 40 * SECOND
    os.utime(path, ns=(later, later))
    [dump] = traces_of([read_dump(path)])
    [box] = gather([tmp_path / "rank00000.simcoll"], workers=0).traces
    [merged] = merge([box], [dump]).traces
    assert (box.seen_ns, merged.seen_ns) == (0, later)
