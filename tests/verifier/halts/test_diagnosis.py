"""Who waits for whom when a job stands still, and which of it is the finding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simcoll.core.record import Event, Group, Record, Source, State
from simcoll.core.trace import LaunchOutcome, MemoryTrace, RankExit, Stall
from simcoll.spec.call import Buffer, Call
from simcoll.verifier.findings.finding import CallPlace, Finding, Severity
from simcoll.verifier.postmortem import judge, standstill
from tests.support.effort import lines_run
from tests.support.traces import trace_of

BUFFER = (Buffer((4,), "float32"),)
CALL = Call("all_reduce", "allreduce", BUFFER, BUFFER, reduce_op="sum")
SECOND = 10**9
STALL = Stall(100 * SECOND, 130 * SECOND)


def group(name: str, *ranks: int) -> Group:
    return Group(name, "", ranks)


def done(of: Group, sequence: int) -> Record:
    return Record(
        of.name, sequence, CALL, Source("train.py", sequence, "step"), State.COMPLETED, scheduled_ns=sequence * SECOND
    )


def waiting(of: Group, sequence: int, state: State = State.STARTED) -> Record:
    line = Source("train.py", 100 + sequence, "step")
    return Record(of.name, sequence, CALL, line, state, awaited=True, scheduled_ns=sequence * SECOND)


def job(
    records: Mapping[int, Sequence[Record]], groups: Sequence[Group], **events: Sequence[Event]
) -> list[MemoryTrace]:
    size = max(records) + 1
    return [
        trace_of(rank, size, groups, mine, mode="record", events=events.get(f"rank{rank}", ()))
        for rank, mine in records.items()
    ]


def running(ranks: int) -> LaunchOutcome:
    return LaunchOutcome({rank: RankExit(None) for rank in range(ranks)})


def halted(traces: Sequence[MemoryTrace], stall: Stall | None = STALL) -> tuple[Finding, ...]:
    return judge(traces, running(len(traces)), stall).findings


A, B, C = group("a", 0, 1), group("b", 1, 2), group("c", 2, 0)
WORLD = group("0", 0, 1, 2)


def test_a_cycle_over_three_groups_names_each_edge() -> None:
    traces = job({0: [waiting(A, 1)], 1: [waiting(B, 1)], 2: [waiting(C, 1)]}, [A, B, C])
    [finding] = halted(traces)
    assert (finding.code, finding.ranks, finding.culprits) == ("SC204", (0, 1, 2), ())
    assert [(side.ranks, side.note) for side in finding.sides] == [
        ((0,), "waits for rank 1"),
        ((1,), "waits for rank 2"),
        ((2,), "waits for rank 0"),
    ]
    assert [side.place for side in finding.sides] == [CallPlace(A, 1), CallPlace(B, 1), CallPlace(C, 1)]
    assert standstill(traces, running(3), STALL)[1]


def test_only_those_who_had_the_choice_vote_in_a_cycle() -> None:
    # Rank 1 left out its call on the pair, or rank 2 came to it too early: of these two there is no majority.
    world, pair = group("0", 0, 1, 2, 3), group("p", 1, 2)
    exchange = replace(waiting(pair, 1), source=Source("train.py", 7, "exchange"))
    traces = job({0: [waiting(world, 1)], 1: [waiting(world, 1)], 2: [exchange], 3: [waiting(world, 1)]}, [world, pair])
    [finding] = halted(traces)
    assert (finding.code, finding.culprits) == ("SC204", ())
    assert "rank 2 waits in all_reduce #1 of group p (ranks 1-2) for rank 1" in finding.message
    three = group("t", 1, 2, 3)
    traces = job(
        {0: [waiting(world, 1)], 1: [waiting(world, 1)], 2: [waiting(three, 1)], 3: [waiting(three, 1)]}, [world, three]
    )
    [finding] = halted(traces)
    assert (finding.code, finding.culprits) == ("SC204", (1,))


def test_a_busy_rank_is_late_and_proves_nothing() -> None:
    here = Source("eval.py", 7, "evaluate")
    traces = job({0: [waiting(WORLD, 1)], 1: [], 2: [waiting(WORLD, 1)]}, [WORLD])
    stall = Stall(100 * SECOND, 130 * SECOND, places={1: here})
    [finding] = halted(traces, stall)
    assert (finding.code, finding.culprits, finding.sequence) == ("SC201", (1,), 1)
    assert finding.sides[0].ranks == (0, 2)
    assert finding.sides[1].sources[0].source == here
    assert "for 30 s" in finding.message
    assert not standstill(traces, running(3), stall)[1]


def test_a_rank_in_which_simcoll_connects_is_not_late() -> None:
    here = Source("train.py", 7, "step")
    traces = job({0: [waiting(WORLD, 1)], 1: [], 2: [waiting(WORLD, 1)]}, [WORLD])
    stall = Stall(100 * SECOND, 130 * SECOND, places={1: here}, connecting=frozenset({1}))
    findings, proved = standstill(traces, running(3), stall)
    assert not proved
    assert [finding.culprits for finding in findings] == [()]
    assert "simcoll connects to the store from this line; no call of it is recorded" in str(findings[0].sides)


def test_one_that_is_late_beside_it_is_named_alone() -> None:
    traces = job({0: [waiting(WORLD, 1)], 1: [], 2: []}, [WORLD])
    [finding] = halted(traces, Stall(100 * SECOND, 130 * SECOND, connecting=frozenset({1})))
    assert (finding.code, finding.culprits) == ("SC201", (2,))


def test_whoever_keeps_the_one_that_keeps_the_others_is_named() -> None:
    # 0 waits for 1 in A; 1 waits for 2 in B; 2 is somewhere else.
    traces = job({0: [waiting(A, 1)], 1: [waiting(B, 1)], 2: []}, [A, B])
    [finding] = halted(traces)
    assert (finding.code, finding.culprits, finding.group) == ("SC201", (2,), B)


def test_ranks_in_a_call_to_which_all_have_come_are_not_late() -> None:
    # 0 and 1 are both in A, which takes its time; 2 waits for them in the world.
    traces = job({0: [waiting(A, 1)], 1: [waiting(A, 1)], 2: [waiting(WORLD, 1)]}, [A, WORLD])
    findings, proved = standstill(traces, running(3), STALL)
    assert not proved
    assert [finding.culprits for finding in findings] == [()]


def test_a_job_ended_from_outside_says_who_was_late_as_a_warning() -> None:
    traces = job({0: [waiting(WORLD, 1)], 1: [], 2: [waiting(WORLD, 1)]}, [WORLD])
    [finding] = halted(traces, Stall(100 * SECOND, 130 * SECOND, over=False))
    assert (finding.code, finding.severity) == ("SC201", Severity.WARNING)


def test_a_rank_that_ended_is_not_late_but_gone() -> None:
    traces = job({0: [waiting(WORLD, 2)], 1: [done(WORLD, 1)], 2: [waiting(WORLD, 2)]}, [WORLD], rank1=[_exit()])
    outcome = LaunchOutcome({0: RankExit(None), 1: RankExit(0, 90 * SECOND), 2: RankExit(None)})
    [finding] = judge(traces, outcome, STALL).findings
    assert (finding.code, finding.culprits) == ("SC702", (1,))
    assert standstill(traces, outcome, STALL)[1]


def test_where_most_have_ended_who_goes_on_is_wrong() -> None:
    left = {"rank0": [_exit()], "rank2": [_exit()]}
    traces = job({0: [done(WORLD, 1)], 1: [waiting(WORLD, 2)], 2: [done(WORLD, 1)]}, [WORLD], **left)
    ended = RankExit(0, 90 * SECOND)
    [finding] = judge(traces, LaunchOutcome({0: ended, 1: RankExit(None), 2: ended}), STALL).findings
    assert (finding.code, finding.ranks, finding.culprits) == ("SC702", (0, 1, 2), (1,))


def test_in_a_chain_of_pairs_the_rank_that_left_is_wrong() -> None:
    """Each rank is alone at its lines: rank 1 waits for rank 0, which has left, and rank 2 for rank 1."""
    traces = job({0: [done(A, 1)], 1: [done(A, 1), waiting(A, 2)], 2: [waiting(B, 1)]}, [A, B], rank0=[_exit()])
    outcome = LaunchOutcome({0: RankExit(0, 90 * SECOND), 1: RankExit(None), 2: RankExit(None)})
    [finding] = judge(traces, outcome, STALL).findings
    assert (finding.code, finding.culprits) == ("SC702", (0,))


def test_ranks_of_which_nothing_is_known_have_no_part_in_the_majority() -> None:
    world = group("0", *range(64))
    left = {"rank0": [_exit()], "rank2": [_exit()]}
    traces = job({0: [done(world, 1)], 1: [waiting(world, 2)], 2: [done(world, 1)]}, [world], **left)
    ended = RankExit(0, 90 * SECOND)
    [finding] = judge(traces, LaunchOutcome({0: ended, 1: RankExit(None), 2: ended}), STALL).findings
    assert (finding.code, finding.ranks, finding.culprits) == ("SC702", (0, 1, 2), (1,))


def test_a_stopped_process_explains_everything() -> None:
    traces = job({0: [waiting(WORLD, 1)], 1: [waiting(WORLD, 1)], 2: [waiting(WORLD, 1)]}, [WORLD])
    [finding] = halted(traces, Stall(100 * SECOND, 130 * SECOND, stopped=frozenset({2})))
    assert (finding.code, finding.culprits) == ("SC201", (2,))
    assert "SIGSTOP" in finding.message


def test_a_rank_with_a_thread_at_work_is_not_stuck() -> None:
    traces = job({0: [waiting(A, 1)], 1: [waiting(B, 1)], 2: [waiting(C, 1)]}, [A, B, C])
    findings, proved = standstill(traces, running(3), Stall(100 * SECOND, 130 * SECOND, busy=frozenset({2})))
    assert not proved
    assert [finding.culprits for finding in findings] == [(2,)]


def test_of_two_waiting_threads_one_that_goes_on_is_enough() -> None:
    # Rank 0 waits in A for 1 and in C for 2; rank 2 is free and will come to C.
    traces = job({0: [waiting(A, 1), waiting(C, 1)], 1: [waiting(B, 1)], 2: []}, [A, B, C])
    findings, proved = standstill(traces, running(3), STALL)
    assert not proved
    assert {finding.code for finding in findings} == {"SC201"}


def test_a_clean_job_is_not_looked_at() -> None:
    traces = job({0: [done(A, 1)], 1: [done(A, 1)]}, [A], rank0=[_exit()], rank1=[_exit()])
    assert judge(traces, LaunchOutcome({0: RankExit(0), 1: RankExit(0)}), None).findings == ()


def test_without_a_sign_of_a_halt_nothing_is_said_of_a_job_that_somebody_watched() -> None:
    traces = job({0: [waiting(A, 1)], 1: [waiting(B, 1)], 2: [waiting(C, 1)]}, [A, B, C])
    assert judge(traces, running(3), None).findings == ()


def _exit() -> Event:
    return Event("exit", 90 * SECOND, {})


def creating(ordinal: int, *ranks: int, done: bool = True, line: int = 5) -> list[Event]:
    place: dict[str, object] = {"life": 1, "ordinal": ordinal}
    source = ["train.py", line, "main", "dist.new_group(ranks)"]
    begun = Event("creating", ordinal * SECOND, {**place, "ranks": list(ranks), "source": source})
    return [begun, Event("created", ordinal * SECOND + 1, place)] if done else [begun]


def test_members_who_state_other_members() -> None:
    events = {f"rank{rank}": creating(1, *((0, 1) if rank < 2 else (1, 2)), done=False) for rank in range(3)}
    [finding] = halted(job({0: [], 1: [], 2: []}, [WORLD], **events))
    assert (finding.code, finding.culprits) == ("SC401", (2,))
    assert [side.ranks for side in finding.sides] == [(0, 1), (2,)]


def counted(ordinal: int, *ranks: int, before: int | None, done: bool = False) -> list[Event]:
    """The making of a group by a rank that has made so many before."""
    begun, *rest = creating(ordinal, *ranks, done=done)
    return [replace(begun, data={**begun.data, "before": before}), *rest]


def test_members_who_count_groups_differently_wait_for_each_other() -> None:
    """Torch 2.15 counts groups that only their members make, too."""
    counts = {0: 1, 1: 2, 2: 2}
    events = {f"rank{rank}": counted(1, 0, 1, 2, before=before) for rank, before in counts.items()}
    [finding] = halted(job({0: [], 1: [], 2: []}, [WORLD], **events))
    assert (finding.code, finding.ranks, finding.culprits) == ("SC401", (0, 1, 2), ())
    assert [(side.ranks, side.note) for side in finding.sides] == [
        ((0,), "groups made before: 1"),
        ((1, 2), "groups made before: 2"),
    ]
    assert "ranks 1-2 made 2, rank 0 made 1" in finding.message


@pytest.mark.parametrize("counts", [(1, 1, 2), (1, 1, None)])
def test_who_is_no_member_may_count_otherwise(counts: tuple[int | None, ...]) -> None:
    """Ranks 0 and 1 wait in the making of a group of theirs, which rank 2, busy elsewhere, has made."""
    events = {f"rank{rank}": counted(1, 0, 1, before=before, done=rank == 2) for rank, before in enumerate(counts)}
    found = halted(job({0: [], 1: [], 2: []}, [WORLD], **events))
    assert all("under different names" not in finding.message for finding in found)


def test_ranks_that_miss_each_other_in_groups_of_other_members_are_one_finding() -> None:
    """In ``detail`` the first call of such a group ends with the ranks that did not come to it."""
    events = {f"rank{rank}": creating(1, *((0, 1) if rank < 2 else (1, 2))) for rank in range(3)}
    data: dict[str, object] = {"group": "a", "sequence": 1, "missing": [1], "waited_ms": 2000}
    source = ["train.py", 101, "step", "dist.all_reduce(x)"]
    events["rank0"].append(Event("missing", 9 * SECOND, data | {"source": source}))
    traces = job({0: [waiting(A, 1, State.FAILED)], 1: [], 2: []}, [WORLD, A], **events)
    assert [finding.code for finding in judge(traces, running(3), None).findings] == ["SC401"]


@pytest.mark.parametrize(("elsewhere", "culprits"), [(True, (2,)), (False, (0, 1, 3))])
def test_a_group_that_most_members_do_not_make_is_made_by_one_too_many(
    elsewhere: bool, culprits: tuple[int, ...]
) -> None:
    """Rank 2 makes a group of all, while the others wait in a call for it, or are at work and may only be late."""
    everybody = group("0", 0, 1, 2, 3)
    calls = [waiting(everybody, 1)] if elsewhere else []
    traces = job({0: calls, 1: calls, 2: [], 3: calls}, [everybody], rank2=creating(1, 0, 1, 2, 3, done=False))
    [finding] = halted(traces)
    assert (finding.code, finding.culprits) == ("SC401", culprits)


def gave_up(of: Group, missing: list[int], at: int) -> list[Event]:
    """What a rank notes in mode detail whose call was not proved within the group's timeout, and which ends by it."""
    source = ["train.py", 101, "step", "dist.all_reduce(x)"]
    data: dict[str, object] = {"group": of.name, "sequence": 1, "missing": missing, "waited_ms": 10_000}
    raised = {"type": "MissingRankError", "message": "Timed out", "source": source}
    return [Event("missing", at * SECOND, data | {"source": source}), Event("exception", at * SECOND, raised)]


def two_orders(begun: int) -> list[MemoryTrace]:
    """Rank 0 uses two groups in the other order; the others come to theirs after so many seconds."""
    first, second = group("1", 0, 1, 2), group("2", 0, 1, 2)
    late = replace(waiting(first, 1, State.FAILED), scheduled_ns=begun * SECOND)
    records = {0: [waiting(second, 1, State.FAILED)], 1: [late], 2: [late]}
    events = {"rank0": gave_up(second, [1, 2], 12), "rank1": gave_up(first, [0], 30), "rank2": gave_up(first, [0], 30)}
    return job(records, [first, second], **events)


def test_ranks_that_gave_each_other_up_were_in_a_cycle() -> None:
    [finding] = judge(two_orders(begun=2)).findings
    assert (finding.code, finding.ranks, finding.culprits) == ("SC204", (0, 1, 2), (0,))


def test_who_gave_up_in_a_call_of_a_cycle_stands_for_that_call() -> None:
    """Ranks 1 and 3 came to the barrier at the program's end by an exception, for want of rank 2."""
    sums, end = group("1", 0, 1, 2, 3), group("0", 0, 1, 2, 3)
    gave = [waiting(sums, 1, State.FAILED), replace(waiting(end, 1), scheduled_ns=20 * SECOND)]
    traces = job({0: [waiting(sums, 1)], 1: gave, 2: [waiting(end, 1)], 3: gave}, [end, sums])
    [finding] = halted(traces)
    assert (finding.code, finding.culprits) == ("SC204", (2,))


def test_ranks_that_others_missed_were_in_a_cycle_of_their_own() -> None:
    """Ranks 0 and 1 use two groups in two orders, and never come to the call that rank 2 gives up."""
    first, second = group("1", 0, 1), group("2", 0, 1)
    records = {0: [waiting(first, 1)], 1: [waiting(second, 1)], 2: [waiting(WORLD, 1, State.FAILED)]}
    [finding] = judge(job(records, [WORLD, first, second], rank2=gave_up(WORLD, [0, 1], 12))).findings
    assert (finding.code, finding.ranks) == ("SC204", (0, 1))


def test_a_rank_that_waits_for_the_one_with_another_call_is_not_missing() -> None:
    """Rank 2 is in another call than ranks 0 and 1, and rank 3 waits for it elsewhere."""
    everybody, pair = group("0", 0, 1, 2, 3), group("1", 2, 3)
    other = replace(waiting(everybody, 1, State.FAILED), call=replace(CALL, reduce_op="max"))
    came = waiting(everybody, 1, State.FAILED)
    traces = job(
        {0: [came], 1: [came], 2: [other], 3: [waiting(pair, 1)]},
        [everybody, pair],
        **{f"rank{rank}": gave_up(everybody, [3], 12) for rank in range(3)},
    )
    [finding] = judge(traces).findings
    assert (finding.code, finding.culprits) == ("SC104", (2,))


def test_who_came_when_the_other_had_given_up_never_met_it_in_a_cycle() -> None:
    [finding] = judge(two_orders(begun=20)).findings
    assert finding.code == "SC201"


def test_what_a_rank_says_of_a_group_that_is_not_its_own_does_no_harm() -> None:
    events = {f"rank{rank}": [*creating(1, *((0, 1) if rank < 2 else (0,))), _exit()] for rank in range(3)}
    traces = job({0: [], 1: [], 2: []}, [WORLD], **events)
    assert judge(traces, LaunchOutcome({rank: RankExit(0) for rank in range(3)})).findings == ()


def test_a_member_that_never_made_the_group() -> None:
    traces = job({0: [], 1: [waiting(WORLD, 1)], 2: []}, [WORLD], rank0=creating(1, 0, 1, done=False))
    [finding] = halted(traces)
    assert (finding.code, finding.culprits) == ("SC401", (1,))


def test_who_makes_a_group_while_all_others_wait_elsewhere_makes_it_too_early() -> None:
    one, other = group("1", 0, 1), group("2", 2, 3)
    records = {0: [], 1: [waiting(one, 1)], 2: [waiting(other, 1)], 3: [waiting(other, 1)]}
    [finding] = halted(job(records, [WORLD, one, other], rank0=creating(1, 0, 1, done=False)))
    assert (finding.code, finding.culprits) == ("SC401", (0,))


def test_receives_in_a_ring_are_a_wait_of_each_rank() -> None:
    def receives(rank: int) -> Record:
        call = Call("recv", "recv", outputs=BUFFER, peer=(rank + 1) % 3)
        line = Source("train.py", rank, "step")
        return Record("0", 0, call, line, State.STARTED, awaited=True, p2p_sequence=1, scheduled_ns=SECOND)

    [finding] = halted(job({rank: [receives(rank)] for rank in range(3)}, [WORLD]))
    assert (finding.code, finding.culprits) == ("SC204", ())
    assert [side.ranks for side in finding.sides] == [(0,), (1,), (2,)]
    assert finding.group == WORLD
    assert "rank 2 waits in recv #1 for rank 0" in finding.message


@pytest.mark.slow
def test_the_work_on_two_groups_in_two_orders_grows_with_their_ranks() -> None:
    def judge_ranks(count: int) -> None:
        first, second = group("a", *range(count)), group("b", *range(count))
        traces = job({rank: [waiting((first, second)[rank % 2], 1)] for rank in range(count)}, [first, second])
        findings, proved = standstill(traces, running(len(traces)), STALL)
        assert ([finding.code for finding in findings], proved) == (["SC204"], True)

    few, many = (lines_run(partial(judge_ranks, count)) for count in (512, 2048))
    assert many < 4.4 * few


def test_a_member_that_has_work_of_its_own_may_still_make_the_group() -> None:
    traces = job({0: [], 1: [done(WORLD, 1)], 2: []}, [WORLD], rank0=creating(1, 0, 1, done=False))
    findings, proved = standstill(traces, running(3), STALL)
    assert ([finding.code for finding in findings], proved) == (["SC401"], False)
    [finding] = halted(traces, Stall(100 * SECOND, 130 * SECOND, over=False))
    assert finding.severity is Severity.WARNING


def test_a_member_that_waits_elsewhere_will_not_make_the_group() -> None:
    traces = job({0: [], 1: [waiting(WORLD, 1)], 2: []}, [WORLD], rank0=creating(1, 0, 1, done=False))
    assert standstill(traces, running(3), STALL)[1]


def test_groups_in_which_each_rank_is_alone_do_no_harm() -> None:
    events = {f"rank{rank}": [*creating(1, rank), _exit()] for rank in range(3)}
    traces = job({0: [], 1: [], 2: []}, [WORLD], **events)
    assert judge(traces, LaunchOutcome({rank: RankExit(0) for rank in range(3)})).findings == ()


@pytest.mark.parametrize("data", [{}, {"life": "1"}, {"life": 1, "ordinal": 1, "ranks": "01"}, {"ordinal": None}])
def test_notes_that_are_none_are_passed_over(data: dict[str, object]) -> None:
    traces = job({0: [waiting(WORLD, 1)], 1: [], 2: []}, [WORLD], rank1=[Event("creating", 1, data)])
    assert [finding.code for finding in halted(traces)] == ["SC201"]


@given(st.data())
def test_ranks_that_make_their_calls_in_one_order_are_never_a_cycle(data: st.DataObject) -> None:
    """Wherever the ranks of a program without a deadlock are, somebody can go on."""
    ranks = data.draw(st.integers(2, 5))
    groups = [
        group(str(index), *sorted(data.draw(st.sets(st.integers(0, ranks - 1), min_size=2))))
        for index in range(data.draw(st.integers(1, 3)))
    ]
    program = data.draw(st.lists(st.sampled_from(groups), max_size=8))
    records: dict[int, list[Record]] = {}
    arrived: dict[int, int] = {}
    for rank in range(ranks):
        arrived[rank] = data.draw(st.integers(0, len(program)))
    # A rank gets past a call only when all members have come to it: cut each rank back to what is possible.
    for _ in range(ranks * (len(program) + 1)):
        for rank in range(ranks):
            for place in range(arrived[rank]):
                if rank in program[place].ranks and any(arrived[other] < place for other in program[place].ranks):
                    arrived[rank] = place
                    break
    for rank in range(ranks):
        counts: dict[str, int] = {}
        mine: list[Record] = []
        for place, of in enumerate(program[: arrived[rank] + 1]):
            if rank in of.ranks:
                counts[of.name] = counts.get(of.name, 0) + 1
                make = done if place < arrived[rank] else waiting
                mine.append(make(of, counts[of.name]))
        records[rank] = mine
    findings, _ = standstill(job(records, groups), running(ranks), STALL)
    assert "SC204" not in [finding.code for finding in findings]
