"""Calls that a device runs while the host goes on: where the devices stand, and who is late."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simcoll.core.record import Event, Group, Record, Source, State
from simcoll.core.trace import DUMPED, ON_DEVICE, LaunchOutcome, MemoryTrace, RankExit, Stall, reached_by
from simcoll.spec.call import Buffer, Call
from simcoll.verifier.findings.finding import Finding, Severity
from simcoll.verifier.halts.device_queue import DeviceCalls, open_rows, queued, stands
from simcoll.verifier.halts.job import Job
from simcoll.verifier.halts.wait_graph import waits_of
from simcoll.verifier.postmortem import judge, standstill
from tests.support.traces import trace_of

BUFFER = (Buffer((4,), "float32", "cuda", 0),)
CALL = Call("all_reduce", "allreduce", BUFFER, BUFFER, reduce_op="sum")
SECOND = 10**9
STALL = Stall(100 * SECOND, 130 * SECOND, blocked=frozenset({0, 1, 2}))
WORLD = Group("0", "default_pg", (0, 1, 2, 3))
PAIR, OTHER = Group("1", "tp", (0, 1)), Group("2", "dp", (0, 1))


@dataclass(frozen=True, slots=True)
class Made:
    """A call of a group as a rank recorded it."""

    group: Group
    state: State = State.STARTED
    asynchronous: bool = False
    running: bool = False
    call: Call = CALL


Program: TypeAlias = Sequence[Made]


def done(group: Group, count: int) -> list[Made]:
    return [Made(group, State.COMPLETED)] * count


def trace(rank: int, made: Program, *, events: Sequence[Event] = (), size: int = 4) -> MemoryTrace:
    groups = list(dict.fromkeys([WORLD, *(one.group for one in made)]))
    numbers, records = dict.fromkeys(groups, 0), []
    for place, one in enumerate(made, 1):
        numbers[one.group] += 1
        line = Source("train.py", place, "step", "dist.all_reduce(x)")
        records.append(
            Record(
                one.group.name,
                numbers[one.group],
                one.call,
                line,
                one.state,
                asynchronous=one.asynchronous,
                awaited=not one.asynchronous,
                scheduled_ns=place * SECOND,
                finished_ns=place * SECOND + 1 if one.state is State.COMPLETED else 0,
            )
        )
    found = trace_of(rank, size, groups, records, mode="record", events=events)
    found.slots["flags"] |= np.array([ON_DEVICE if one.running else 0 for one in made], np.uint8)
    return found


def traces_of(programs: Mapping[int, Program], **events: Sequence[Event]) -> list[MemoryTrace]:
    return [trace(rank, made, events=events.get(f"rank{rank}", ())) for rank, made in programs.items()]


def running(count: int = 4) -> LaunchOutcome:
    return LaunchOutcome({rank: RankExit(None) for rank in range(count)})


def halted(traces: Sequence[MemoryTrace], stall: Stall | None = STALL, outcome: LaunchOutcome | None = None) -> Finding:
    [finding] = judge(traces, outcome or running(len(traces)), stall).findings
    return finding


def missing(behind: int, *, stale: int = 0) -> dict[int, list[Made]]:
    """Rank 3 does not come to the 8th call; the others have queued more, and have not looked whether the last ended."""
    others = [*done(WORLD, 7 - stale), *[Made(WORLD)] * (stale + 1 + behind)]
    return dict.fromkeys(range(3), others) | {3: done(WORLD, 7)}


@pytest.mark.parametrize("behind", [0, 1, 40])
@pytest.mark.parametrize("stale", [0, 3])
def test_the_missing_rank_is_named_at_the_call_where_the_devices_stand(behind: int, stale: int) -> None:
    stall = replace(STALL, places={3: Source("eval.py", 7, "evaluate")})
    finding = halted(traces_of(missing(behind, stale=stale)), stall)
    assert (finding.code, finding.culprits, finding.sequence) == ("SC201", (3,), 8)
    assert (
        "did not come to all_reduce (collective 8), where the devices of ranks 0-2 waited for 30 s" in finding.message
    )
    assert finding.sides[0].ranks == (0, 1, 2)
    assert ("behind it are queued calls up to all_reduce #" in finding.sides[0].note) == bool(behind)
    assert finding.sides[1].sources[0].source.file == "eval.py"
    assert finding.sides[1].note.startswith("is at this line")


def test_hosts_that_compute_or_spin_do_not_hide_that_their_devices_wait() -> None:
    """CUDA spins while it waits, so that processor time tells nothing."""
    stall = replace(STALL, busy=frozenset(range(4)), blocked=frozenset[int]())
    finding = halted(traces_of(missing(2)), stall)
    assert (finding.code, finding.culprits, finding.sequence) == ("SC201", (3,), 8)


def test_a_rank_that_is_late_may_still_come() -> None:
    findings, proved = standstill(traces_of(missing(2)), running(), STALL)
    assert [finding.culprits for finding in findings] == [(3,)]
    assert not proved


@pytest.mark.parametrize("blocked", [True, False])
def test_groups_in_opposite_orders_stand_whatever_the_hosts_do(blocked: bool) -> None:
    """Both hosts have queued both calls and gone on."""
    traces = traces_of({0: [Made(PAIR), Made(OTHER)], 1: [Made(OTHER), Made(PAIR)], 2: [], 3: []})
    stall = replace(STALL, blocked=frozenset({0, 1} if blocked else ()))
    finding = halted(traces, stall)
    assert (finding.code, finding.ranks) == ("SC204", (0, 1))
    assert "the device of rank 0 waits in all_reduce #1 of group 1" in finding.message
    assert standstill(traces, running(), stall)[1]


def test_asynchronous_calls_of_two_groups_run_beside_each_other() -> None:
    both = [Made(PAIR, asynchronous=True), Made(OTHER, asynchronous=True)]
    traces = traces_of({0: both, 1: both[::-1], 2: [], 3: []})
    assert not standstill(traces, running(), STALL)[1]
    assert [finding.culprits for finding in judge(traces, running(), STALL).findings] == [()]


def test_a_call_that_runs_is_behind_nothing() -> None:
    """Its stream is another one than that of the call before."""
    one = [Made(PAIR), replace(Made(OTHER), running=True)]
    other = [Made(OTHER, running=True), Made(PAIR)]
    traces = traces_of({0: one, 1: other, 2: [], 3: []})
    assert not standstill(traces, running(), STALL)[1]


@pytest.mark.parametrize("blocked", [True, False])
def test_who_has_not_made_a_call_is_kept_only_while_its_host_waits_for_the_device(blocked: bool) -> None:
    """Rank 0 makes A and waits for it; rank 1 makes B and waits for it."""
    traces = traces_of({0: [Made(PAIR)], 1: [Made(OTHER)], 2: [], 3: []})
    stall = replace(STALL, blocked=frozenset({0, 1} if blocked else ()), places={1: Source("train.py", 9, "step")})
    findings, proved = standstill(traces, running(), stall)
    assert proved == blocked
    assert [finding.code for finding in findings if finding.culprits or finding.code == "SC204"] == (
        ["SC204"] if blocked else []
    )


def test_a_mismatch_behind_which_hosts_went_on_is_proved() -> None:
    wrong = replace(CALL, reduce_op="max")
    programs = {rank: [*done(WORLD, 2), *[Made(WORLD)] * 9] for rank in range(4)}
    programs[2] = [*done(WORLD, 2), Made(WORLD, call=wrong), *[Made(WORLD)] * 8]
    findings, proved = standstill(traces_of(programs), running(), STALL)
    assert proved
    assert (findings[0].code, findings[0].sequence, findings[0].culprits) == ("SC104", 3, (2,))


def test_a_job_that_ended_well_is_silent_whatever_it_has_looked_at() -> None:
    ended = [Event("exit", 200 * SECOND, {})]
    programs = {rank: [Made(WORLD)] * 12 for rank in range(4)}
    traces = traces_of(programs, **{f"rank{rank}": ended for rank in range(4)})
    outcome = LaunchOutcome({rank: RankExit(0, 200 * SECOND) for rank in range(4)})
    assert judge(traces, outcome).findings == ()


@pytest.mark.parametrize(("age", "dumped"), [(600, False), (31, False), (10, True)])
def test_what_torchs_watchdog_ends_does_not_hide_why(age: int, dumped: bool) -> None:
    """All ranks end by SIGABRT, the one that the others waited for as well."""
    end = (11 + age) * SECOND
    exits = {rank: RankExit(-6, end + rank) for rank in range(4)}
    events = {f"rank{rank}": [Event(DUMPED, end - SECOND, {})] for rank in range(4) if dumped}
    report = judge(traces_of(missing(3), **events), LaunchOutcome(exits))
    [finding] = report.findings
    assert (finding.code, finding.culprits, finding.sequence) == ("SC201", (3,), 8)
    assert "until torch's NCCL watchdog ended rank 0 (SIGABRT)" in finding.message
    assert [state.exit_code for state in report.ranks] == [-6] * 4


def test_what_the_monitor_saw_before_torch_gave_up_is_told_and_is_an_error() -> None:
    """The agent has stopped the others, and among them the first that waited."""
    stall = Stall(12 * SECOND, 50 * SECOND, places={3: Source("eval.py", 7, "evaluate")}, over=False)
    exits = {rank: RankExit(-15, 61 * SECOND, stopped=True) for rank in range(4)} | {1: RankExit(-6, 60 * SECOND)}
    [finding] = judge(traces_of(missing(2)), LaunchOutcome(exits), stall).findings
    assert (finding.code, finding.severity, finding.culprits) == ("SC201", Severity.ERROR, (3,))
    assert "for 52 s, until torch's NCCL watchdog ended rank 1 (SIGABRT)" in finding.message
    assert finding.sides[1].sources[0].source.file == "eval.py"


def test_calls_that_end_when_the_communicator_is_aborted_have_not_ended() -> None:
    """The kernels of an aborted communicator end; the program goes on, and may even come to its end."""
    dumped = [Event(DUMPED, 30 * SECOND, {}), Event("exit", 32 * SECOND, {})]
    traces = traces_of(missing(2), rank0=dumped, rank1=dumped, rank2=dumped)
    for one in traces[:3]:
        left = one.slots["state"] != State.COMPLETED
        one.slots["state"][left], one.slots["finished_ns"][left] = State.COMPLETED, 31 * SECOND
    exits = {rank: RankExit(-6, 33 * SECOND) for rank in range(3)} | {3: RankExit(-15, 34 * SECOND, stopped=True)}
    [finding] = judge(traces, LaunchOutcome(exits)).findings
    assert (finding.code, finding.culprits, finding.sequence) == ("SC201", (3,), 8)


def test_an_old_dump_of_a_job_that_went_on_takes_nothing_back() -> None:
    dumped = [Event(DUMPED, 3 * SECOND, {})]
    programs = {rank: done(WORLD, 400) for rank in range(4)}
    traces = traces_of(programs, rank0=dumped)
    exits = {rank: RankExit(-15, 402 * SECOND, stopped=True) for rank in range(4)} | {1: RankExit(-6, 401 * SECOND)}
    report = judge(traces, LaunchOutcome(exits))
    assert [(one.code, one.culprits) for one in report.findings] == [("SC701", (1,))]
    assert report.agreed == 400


def test_an_abort_by_itself_comes_first() -> None:
    exits = {rank: RankExit(-6 if rank == 3 else None, 12 * SECOND) for rank in range(4)}
    [finding] = judge(traces_of(missing(3)), LaunchOutcome(exits)).findings
    assert (finding.code, finding.culprits) == ("SC701", (3,))
    # The others are ended by the watchdog ten minutes later.
    exits = {rank: RankExit(-6, (12 if rank == 3 else 612) * SECOND) for rank in range(4)}
    [finding] = judge(traces_of(missing(3)), LaunchOutcome(exits)).findings
    assert (finding.code, finding.culprits) == ("SC701", (3,))


def test_a_rank_that_is_killed_in_a_kernel_is_named_with_what_it_was_in() -> None:
    programs = {rank: [*done(WORLD, 7), *[Made(WORLD)] * 5] for rank in range(4)}
    exits = {rank: RankExit(-9 if rank == 2 else -15, 14 * SECOND, stopped=rank != 2) for rank in range(4)}
    [finding] = judge(traces_of(programs), LaunchOutcome(exits)).findings
    assert (finding.code, finding.culprits) == ("SC701", (2,))
    assert "its device was in all_reduce #8 of group 0" in finding.sides[0].note
    assert "its last call was all_reduce #12 of group 0" in finding.sides[0].note


def test_peers_that_lose_a_killed_rank_are_its_victims() -> None:
    programs = {rank: [*done(WORLD, 7), *[Made(WORLD)] * 5] for rank in range(4)}
    text = (
        "NCCL error in: ProcessGroupNCCL.cpp:3690, remote process exited or there was a network error, NCCL version "
        "2.27.5\nncclRemoteError: A call failed, maybe for a network error or a remote process that exited prematurely."
    )
    lost = {f"rank{rank}": [Event("exception", 20 * SECOND, error("DistBackendError", text))] for rank in (0, 1)}
    exits = {0: RankExit(1, 21 * SECOND), 1: RankExit(1, 21 * SECOND), 2: RankExit(-9, 19 * SECOND)}
    [finding] = judge(traces_of(programs, **lost), LaunchOutcome(exits | {3: RankExit(-6, 90 * SECOND)})).findings
    assert (finding.code, finding.culprits) == ("SC701", (2,))


def error(kind: str, message: str) -> dict[str, object]:
    return {"type": kind, "message": message, "source": ["train.py", 12, "step", "dist.all_reduce(x)"], "api": None}


ILLEGAL = "CUDA error: an illegal memory access was encountered\nSearch for `cudaErrorIllegalAddress' in CUDA's pages"
MEMORY = "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79.15 GiB"


@pytest.mark.parametrize(
    ("kind", "text", "advice"),
    [
        ("AcceleratorError", ILLEGAL, "compute-sanitizer"),
        ("RuntimeError", ILLEGAL, "CUDA_LAUNCH_BLOCKING=1"),
        ("OutOfMemoryError", MEMORY, "no memory left"),
        ("DistBackendError", f"NCCL error: unhandled cuda error\nCuda failure '{ILLEGAL[12:]}", "sanitizer"),
        ("AcceleratorError", "CUDA error: uncorrectable ECC error encountered", "Xid"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("in_the_collective", [True, False])
def test_an_error_of_the_device_is_its_ranks_and_not_the_collectives(
    kind: str, text: str, advice: str, in_the_collective: bool
) -> None:
    """It comes up at a later, innocent call; the peers hang, and are ended, or abort."""
    programs = {rank: [*done(WORLD, 7), *[Made(WORLD)] * 3] for rank in range(4)}
    programs[1] = [*done(WORLD, 7), Made(WORLD), Made(WORLD, State.REJECTED)]
    events = [
        Event("exception", 10 * SECOND, {**error(kind, text), "api": "all_reduce" if in_the_collective else None})
    ]
    if in_the_collective:
        refused = {**error(kind, text), "group": "0", "sequence": 9, "function": "all_reduce"}
        events.insert(0, Event("rejected", 10 * SECOND, refused))
    exits = {rank: RankExit(-15, 12 * SECOND, stopped=True) for rank in range(4)}
    exits |= {1: RankExit(1, 11 * SECOND), 3: RankExit(-6, 700 * SECOND)}
    [finding] = judge(traces_of(programs, rank1=events), LaunchOutcome(exits)).findings
    assert (finding.code, finding.culprits) == ("SC701", (1,))
    assert advice in finding.message
    assert finding.message.endswith("what other ranks report came after it")


def test_a_collective_that_meets_the_devices_error_and_is_handled_is_not_refused() -> None:
    programs = {rank: [*done(WORLD, 7), Made(WORLD)] for rank in range(4)}
    refused = {**error("AcceleratorError", ILLEGAL), "group": "0", "sequence": 8, "function": "all_reduce"}
    programs[1] = [*done(WORLD, 7), Made(WORLD, State.REJECTED)]
    report = judge(traces_of(programs, rank1=[Event("rejected", 9 * SECOND, refused)]), running(), STALL)
    assert "SC601" not in [finding.code for finding in report.findings]


def test_a_job_that_is_given_up_where_all_have_come_blames_nobody() -> None:
    finding = halted(traces_of({rank: [*done(WORLD, 3), Made(WORLD)] for rank in range(4)}))
    assert (finding.code, finding.culprits) == ("SC201", ())


def test_messages_that_wait_for_their_other_end_stand() -> None:
    send = Call("send", "send", BUFFER, (), peer=1)
    records = [Record("0", 0, send, state=State.STARTED, awaited=True, p2p_sequence=1, scheduled_ns=SECOND)]
    alone = trace_of(0, 4, [WORLD], records, mode="record")
    assert [one.row for one in stands(DeviceCalls([alone]), {0: alone}, reached_by({0: alone}), {(0, 0)})] == [0]
    assert stands(DeviceCalls([alone]), {0: alone}, reached_by({0: alone}), ()) == []


def test_calls_of_hosts_are_not_queued() -> None:
    cpu = replace(CALL, inputs=(Buffer((4,), "float32"),), outputs=(Buffer((4,), "float32"),))
    barrier = Call("barrier", "barrier")
    mixed = trace(0, [Made(PAIR, call=cpu), Made(PAIR, call=barrier), Made(WORLD, call=barrier), Made(WORLD)])
    assert queued(mixed).tolist() == [False, False, True, True]
    assert open_rows(mixed).tolist() == [2, 3]


CALLS = st.lists(st.tuples(st.sampled_from([WORLD, PAIR, OTHER]), st.booleans()), max_size=12)


@given(CALLS, st.data())
def test_ranks_that_make_the_same_calls_never_stand(calls: Sequence[tuple[Group, bool]], data: st.DataObject) -> None:
    """In one order on all ranks; how much of it each has looked at is left to chance."""
    traces = {}
    for rank in range(4):
        mine = [Made(group, asynchronous=later) for group, later in calls if rank in group.ranks]
        seen = data.draw(st.integers(0, len(mine)))
        traces[rank] = trace(rank, [*(replace(one, state=State.COMPLETED) for one in mine[:seen]), *mine[seen:]])
    assert stands(DeviceCalls([*traces.values()]), traces, reached_by(traces), ()) == []


@given(CALLS, st.integers(0, 3), st.data())
def test_whoever_stops_early_is_the_one_that_is_missing(
    calls: Sequence[tuple[Group, bool]], rank: int, data: st.DataObject
) -> None:
    programs = {
        one: [Made(group, asynchronous=later) for group, later in calls if one in group.ranks] for one in range(4)
    }
    kept = data.draw(st.integers(0, len(programs[rank])))
    left_out = {made.group for made in programs[rank][kept:]}
    programs[rank] = programs[rank][:kept]
    traces = {one: trace(one, made) for one, made in programs.items()}
    job = Job(traces, {}, {}, {}, stall=STALL)
    needed = {one for wait in waits_of(job).all() for one in wait.needs - wait.behind}
    assert needed == ({rank} if any(len(group.ranks) > 1 for group in left_out) else set())


def test_a_rank_that_is_late_when_a_job_is_ended_from_outside_might_have_come() -> None:
    late = halted(traces_of(missing(0)), replace(STALL, over=False))
    assert late.severity is Severity.WARNING
