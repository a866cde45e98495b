"""Jobs that nobody watched: who is late by the records alone, and who is not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from simcoll.core.record import Event, Group, Record, Source, State
from simcoll.core.trace import MemoryTrace
from simcoll.spec.call import Buffer, Call
from simcoll.verifier.exit_code import exit_code
from simcoll.verifier.findings.finding import Activity, Finding, Report, Severity
from simcoll.verifier.postmortem import judge
from tests.support.traces import trace_of

SECOND = 10**9
BUFFER = (Buffer((4,), "float32"),)
CALL = Call("all_reduce", "all_reduce", BUFFER, BUFFER)
BROADCAST = Call("broadcast", "broadcast", BUFFER, BUFFER)
UNKNOWN = frozenset({"reduce_op", "root", "input_splits", "output_splits", "tag", "device", "order"})
GLOO = UNKNOWN | {"state"}
WORLD = Group("0", "default_pg", (0, 1, 2, 3))
EXIT = Event("exit", 20 * SECOND, {})


def call(
    sequence: int,
    at: float,
    state: State = State.SCHEDULED,
    *,
    group: Group = WORLD,
    what: Call = CALL,
    finished: float = 0,
    asynchronous: bool = False,
    awaited: bool = True,
) -> Record:
    line = Source("train.py", 10 + sequence, "step")
    started = at if state in (State.STARTED, State.COMPLETED) else 0
    times = (int(at * SECOND), int(started * SECOND), int(finished * SECOND))
    return Record(group.name, sequence, what, line, state, asynchronous, awaited, 0, *times)


def ended(sequence: int, at: float, **of: object) -> Record:
    """A call of which Gloo's dump says that it has ended, well or not."""
    return replace(call(sequence, at, State.COMPLETED, **of), started_ns=0)  # type: ignore[arg-type]


def dump(
    rank: int,
    records: Sequence[Record],
    written: float,
    *,
    groups: Sequence[Group] = (WORLD,),
    unknown: frozenset[str] = GLOO,
    world_size: int = 4,
) -> MemoryTrace:
    trace = trace_of(rank, world_size, groups, records, mode="flight recorder")
    return replace(trace, unknown=unknown, seen_ns=int(written * SECOND))


def box(rank: int, records: Sequence[Record], events: Sequence[Event] = ()) -> MemoryTrace:
    return trace_of(rank, 4, [WORLD], records, mode="record", events=events)


def only(report: Report) -> Finding:
    [finding] = report.findings
    return finding


def came(*ranks: int, at: float = 2, written: float = 8) -> list[MemoryTrace]:
    """Dumps of ranks that wait in the second collective, written one after the other."""
    return [dump(rank, [ended(1, 1), call(2, at)], written + rank / 50) for rank in ranks]


def test_a_rank_that_did_not_come_is_named() -> None:
    report = judge([*came(0, 1, 2), dump(3, [ended(1, 1)], 8)])
    finding = only(report)
    assert (finding.code, finding.culprits, finding.sequence) == ("SC201", (3,), 2)
    assert "for 6 s" in finding.message
    assert finding.sides[0].ranks == (0, 1, 2)
    assert exit_code(report) == 3


def test_a_call_that_most_did_not_make_is_one_too_many() -> None:
    finding = only(judge([*came(2), *(dump(rank, [ended(1, 1)], 8) for rank in (0, 1, 3))]))
    assert (finding.code, finding.culprits, finding.sequence) == ("SC202", (2,), 2)
    assert "for 6 s" in finding.message
    # Most may have ended, and written their dumps, before.
    early = [dump(rank, [ended(1, 1)], 1.2 + rank / 50) for rank in (0, 1, 3)]
    finding = only(judge([*came(2), *early]))
    assert (finding.code, finding.culprits) == ("SC202", (2,))
    assert judge([*came(2), *early[:2]]).findings == ()
    assert judge([*came(2), *early[:2], dump(3, [], 1.2)]).findings == ()
    # Half of them are no majority: the others are what these wait for.
    finding = only(judge([*came(1, 2), *(dump(rank, [ended(1, 1)], 8) for rank in (0, 3))]))
    assert (finding.code, finding.culprits) == ("SC201", (0, 3))


@pytest.mark.parametrize(("until", "culprits"), [(7, ()), (3, (2, 3))])
def test_who_goes_on_in_another_group_is_not_late_yet(until: int, culprits: tuple[int, ...]) -> None:
    """Two ranks evaluate by themselves while the others wait for them."""
    pair = Group("1", "", (2, 3))
    evaluates = [ended(number, number + 1, group=pair) for number in range(1, until)]
    both = [dump(rank, [ended(1, 1), *evaluates], 8 + rank / 50, groups=[WORLD, pair]) for rank in (2, 3)]
    findings = judge([*came(0, 1), *both]).findings
    assert [finding.culprits for finding in findings] == ([culprits] if culprits else [])


def test_who_waits_for_a_moment_waits_for_nobody() -> None:
    report = judge([*came(0, 1, 2, at=6.5), dump(3, [ended(1, 1)], 8)])
    assert report.findings == ()
    assert any("not written at one moment" in note for note in report.notes)


def test_a_dump_that_was_written_before_the_call_blames_nobody() -> None:
    later = [dump(rank, [ended(1, 1), ended(2, 6), ended(3, 7)], 8) for rank in range(3)]
    report = judge([*later, dump(3, [ended(1, 1)], 5)])
    assert report.findings == ()
    assert any("rank 3" in note for note in report.notes)


def test_a_call_that_ended_without_a_rank_has_failed() -> None:
    failed = [dump(rank, [ended(1, 1), ended(2, 2)], 5) for rank in range(3)]
    finding = only(judge([*failed, dump(3, [ended(1, 1)], 8)]))
    assert (finding.code, finding.culprits) == ("SC201", (3,))


@pytest.mark.parametrize("last", [State.COMPLETED, State.SCHEDULED])
def test_ranks_that_failed_in_two_groups_waited_for_each_other(last: State) -> None:
    """All have timed out, and wrote their dumps one after the other: whoever was first must not look free."""
    three = Group("1", "", (0, 1, 2))
    groups = [WORLD, three]
    early = [
        dump(1, [ended(1, 1), ended(1, 1.5, group=three), call(2, 2, last)], 8, groups=groups),
        dump(3, [ended(1, 1), ended(2, 2)], 8.1),
    ]
    calls = [ended(1, 1), ended(1, 1.5, group=three), ended(2, 2, group=three)]
    finding = only(judge([*early, *(dump(rank, calls, 8.2 + rank / 50, groups=groups) for rank in (0, 2))]))
    assert (finding.code, finding.culprits) == ("SC204", (1,))
    assert [side.ranks for side in finding.sides] == [(0, 2), (1, 3)]


def test_of_a_call_that_failed_all_who_made_it_waited() -> None:
    failed = [dump(rank, [ended(1, 1), ended(2, 2)], 8 + rank) for rank in (0, 1, 2)]
    finding = only(judge([*failed, dump(3, [ended(1, 1)], 8.5)]))
    assert (finding.code, finding.culprits) == ("SC201", (3,))
    assert finding.sides[0].ranks == (0, 1, 2)
    assert finding.sides[1].note.endswith("all_reduce #1 of group 0, ended")
    assert [source.source.line for source in finding.sides[1].sources] == [11]


def test_a_call_that_some_have_left_is_no_deadlock_of_groups() -> None:
    """Two ranks name another root: what nobody states holds them up, in the first of the calls."""
    first = [dump(rank, [ended(1, 1), call(2, 2, what=BROADCAST)], 8 + rank / 50) for rank in (0, 2)]
    later = [dump(rank, [ended(1, 1), ended(2, 2, what=BROADCAST), call(3, 2)], 8 + rank / 50) for rank in (1, 3)]
    finding = only(judge([*first, *later]))
    assert (finding.code, finding.culprits, finding.sequence) == ("SC201", (), 2)
    assert "which ranks 1 and 3 had left" in finding.message
    assert "root" in finding.unknown


def test_a_broadcast_may_end_without_a_rank() -> None:
    left = [dump(rank, [ended(1, 1), ended(2, 2, what=BROADCAST)], 5) for rank in range(3)]
    report = judge([*left, dump(3, [ended(1, 1)], 8)])
    assert report.findings == ()
    assert any("rank 3 had not come to calls that others had made 6 s before" in note for note in report.notes)


def test_a_rank_that_left_no_dump_is_what_all_others_wait_for() -> None:
    finding = only(judge(came(0, 1, 2, written=20)))
    assert (finding.code, finding.culprits) == ("SC201", (3,))
    # One that failed and wrote its dump at once shows how long that takes.
    failed = dump(0, [ended(1, 1), ended(2, 2)], 4)
    assert only(judge([failed, *came(1, 2)])).culprits == (3,)
    assert any(side.note.startswith("left no record") for side in finding.sides)


def test_a_rank_that_left_no_dump_is_not_blamed_where_another_is_known_to_be_late() -> None:
    finding = only(judge([*came(0, 1), dump(3, [ended(1, 1)], 8)]))
    assert (finding.code, finding.culprits) == ("SC201", (3,))


@pytest.mark.parametrize("written", [8, 10**6])
def test_copies_do_not_tell_when_they_were_written(written: float) -> None:
    """The last call of a Gloo dump may have ended without a word, and a copy makes it look as if it stood."""
    for ranks in ((0, 1, 2), (0, 1, 2, 3)):
        traces = [dump(rank, [ended(1, 1), call(2, 2)], written + rank / 10**4) for rank in ranks]
        assert judge(traces).findings == ()


def test_a_copy_says_who_did_not_come_but_not_for_how_long() -> None:
    copies = [replace(trace, seen_ns=10**6 * SECOND) for trace in [*came(0, 1, 2), dump(3, [ended(1, 1)], 8)]]
    finding = only(judge(copies))
    assert (finding.code, finding.culprits) == ("SC201", (3,))
    assert finding.message == "rank 3 did not come to all_reduce (collective 2), where ranks 0-2 waited"


def test_most_ranks_without_a_dump_are_not_blamed() -> None:
    report = judge([*came(0), dump(1, [ended(1, 1), call(2, 2)], 9)])
    assert all(not finding.culprits for finding in report.findings)


def test_a_call_that_stands_though_all_came() -> None:
    finding = only(judge(came(0, 1, 2, 3, written=40)))
    assert (finding.code, finding.culprits, finding.ranks) == ("SC201", (), (0, 1, 2, 3))
    assert set(finding.unknown) == {"reduce_op", "device", "order"}


@pytest.mark.parametrize("names_of_frames", [0.1, 2.9, 9])
def test_the_last_calls_of_a_job_that_ended_well_may_seem_open(names_of_frames: float) -> None:
    """Gloo marks a call as ended a moment after it has returned, and torch takes seconds to write the dump."""
    assert judge(came(0, 1, 2, 3, written=2 + names_of_frames)).findings == ()
    assert judge(came(0, 1, 3, written=2 + names_of_frames)).findings == ()


def test_a_large_transfer_takes_its_time() -> None:
    large = (Buffer((10**9,), "float32"),)
    what = Call("all_reduce", "all_reduce", large, large)
    assert judge([dump(rank, [call(1, 1, what=what)], 8) for rank in range(4)]).findings == ()


def test_all_ranks_that_stand_in_several_groups_are_a_deadlock() -> None:
    first, second = Group("1", "", (0, 1)), Group("2", "", (2, 3))
    traces = [
        dump(rank, [call(1, 2, group=mine)], 8 + rank / 50, groups=[mine])
        for rank, mine in enumerate((first, first, second, second))
    ]
    finding = only(judge(traces))
    assert (finding.code, finding.culprits, finding.ranks) == ("SC204", (), (0, 1, 2, 3))
    # Ranks may well write at one moment, but soon.
    at_once = [replace(trace, seen_ns=12 * SECOND) for trace in traces]
    assert only(judge(at_once)).code == "SC204"
    # Copies do not tell whether these calls stood, or were the last of two groups: unless one rank alone is known.
    copies = [replace(trace, seen_ns=48 * SECOND) for trace in traces]
    assert judge(copies).findings == ()
    alone = Group("3", "", (3,), partial=True)
    known = [dump(rank, [call(1, 2, group=first)], 8, groups=[WORLD, first]) for rank in (0, 1)]
    last = [dump(rank, [call(1, 2, group=mine)], 8, groups=[WORLD, mine]) for rank, mine in ((2, second), (3, alone))]
    finding = only(judge([*known, *last]))
    assert finding.code == "SC204"
    assert "rank 3 waits in all_reduce #1 of group 3 (rank 3, as far as known)" in finding.message


def test_groups_whose_members_have_all_come_are_no_deadlock() -> None:
    first, second = Group("1", "", (0, 1)), Group("2", "", (2, 3))
    traces = [
        dump(
            rank,
            [call(1, 1, State.COMPLETED, group=mine, finished=2), call(2, 2, group=mine)],
            15 + rank,
            groups=[mine],
            unknown=UNKNOWN,
        )
        for rank, mine in enumerate((first, first, second, second))
    ]
    assert judge(traces).findings == ()


def test_a_cycle_over_two_groups() -> None:
    first, second = Group("1", "", (0, 1, 2, 3)), Group("2", "", (0, 1, 2, 3))
    groups = [first, second]
    traces = [
        dump(rank, [call(1, 2, State.STARTED, group=groups[rank > 1])], 60, groups=groups, unknown=UNKNOWN)
        for rank in range(4)
    ]
    assert only(judge(traces)).code == "SC204"


def test_who_is_seen_not_to_come_has_a_dump_of_the_same_moment() -> None:
    """Ranks that wait for each other in two groups: nothing is to be said of when their dumps were written."""
    pair = Group("1", "", (1, 2))
    traces = [dump(rank, [call(1, 2)], 9 + rank / 50, groups=[WORLD, pair]) for rank in (0, 1, 3)]
    report = judge([*traces, dump(2, [call(1, 2, group=pair)], 9, groups=[WORLD, pair])])
    assert only(report).code == "SC204"
    assert not any("moment" in note for note in report.notes)


def test_a_call_that_stands_for_a_while_though_all_came_is_noted() -> None:
    report = judge(came(0, 1, 2, 3, written=9))
    assert report.findings == ()
    assert any("ranks 0-3 had been in all_reduce #2" in note and "for 7 s" in note for note in report.notes)


def slowly_written(*states: State) -> list[MemoryTrace]:
    """Dumps that took their ranks seconds to write, each right after the second call, which some show as open."""
    calls = [ended(2, 2) if state is State.COMPLETED else call(2, 2) for state in states]
    return [dump(rank, [ended(1, 1), mine], 8 + rank / 50) for rank, mine in enumerate(calls)]


def test_a_call_that_one_dump_shows_as_ended_and_another_as_open_has_not_failed() -> None:
    """torch retires an entry when the call has returned: a dump that is taken in between shows it as open."""
    report = judge(slowly_written(State.SCHEDULED, State.SCHEDULED, State.SCHEDULED, State.COMPLETED))
    assert report.findings == ()
    assert report.summary is not None
    assert Activity.FAILED not in {place.activity for place in report.summary.places}


def test_a_call_that_failed_for_want_of_a_rank_is_shown_as_failed() -> None:
    gave_up = [dump(rank, [ended(1, 1), ended(2, 2)], 8 + rank / 50) for rank in (0, 1, 2)]
    report = judge([*gave_up, dump(3, [ended(1, 1)], 9)])
    assert only(report).culprits == (3,)
    assert report.summary is not None
    assert [place.ranks for place in report.summary.places if place.activity is Activity.FAILED] == [(0, 1, 2)]


def queued(rank: int, waits_since: float | None, written: float) -> MemoryTrace:
    """A dump of NCCL, whose states are known."""
    records = [call(1, 1, State.COMPLETED, finished=1.1)]
    records += [] if waits_since is None else [call(2, waits_since)]
    return dump(rank, records, written, unknown=UNKNOWN)


@pytest.mark.parametrize(("seconds", "culprits"), [(5, ()), (600, (3,))])
def test_a_device_may_hold_a_call_back(seconds: float, culprits: tuple[int, ...]) -> None:
    traces = [queued(rank, 2, 2 + seconds) for rank in range(3)] + [queued(3, None, 2 + seconds)]
    findings = judge(traces).findings
    assert [finding.culprits for finding in findings] == ([culprits] if culprits else [])


def waiting(rank: int, at: float = 10) -> MemoryTrace:
    return box(rank, [call(1, 1, State.COMPLETED, finished=1.1), call(2, at, State.STARTED)])


def busy(rank: int, until: float = 0, events: Sequence[Event] = ()) -> MemoryTrace:
    """A rank that has not come to the second collective; an event shows until when it lived."""
    more = [Event("created", int(until * SECOND), {})] if until else []
    return box(rank, [call(1, 1, State.COMPLETED, finished=1.1)], [*more, *events])


def test_a_job_ended_in_the_middle_of_work_is_silent() -> None:
    report = judge([waiting(0), waiting(1), waiting(2), busy(3, until=12)])
    assert report.findings == ()
    assert any("rank 3 had not come" in note for note in report.notes)


def test_a_rank_that_others_outlived_for_long_is_late() -> None:
    report = judge([waiting(0), waiting(1), waiting(2), busy(3, until=100)])
    finding = only(report)
    assert (finding.code, finding.culprits, finding.severity) == ("SC201", (3,), Severity.WARNING)
    assert exit_code(report) == 0


def test_copies_of_long_ago_tell_of_no_delay() -> None:
    ago = [replace(trace, seen_ns=12 * SECOND) for trace in (waiting(0), waiting(1), busy(3))]
    gone_on = [call(number, at, State.COMPLETED, finished=at + 9) for number, at in ((1, 1), (2, 10), (3, 90))]
    assert judge([*ago, replace(box(2, gone_on), seen_ns=100 * SECOND)]).findings == ()


def copied(trace: MemoryTrace, at: float) -> MemoryTrace:
    """As :func:`simcoll.dump` copies a black box while its rank goes on."""
    return replace(trace, seen_ns=int(at * SECOND))


def test_copies_tell_for_how_long_a_rank_was_late() -> None:
    waits = [copied(waiting(rank), 50) for rank in range(3)]
    finding = only(judge([*waits, copied(busy(3, until=12), 50)]))
    assert (finding.code, finding.culprits, finding.severity) == ("SC201", (3,), Severity.WARNING)
    assert "waited for 40 s" in finding.message


@pytest.mark.parametrize(("second", "codes"), [(12, ["SC204"]), (9, [])])
def test_copies_of_different_moments_prove_no_cycle(second: float, codes: list[str]) -> None:
    """The other rank may have come since the first copy was made."""
    first, other = Group("0", "", (0, 1)), Group("1", "", (0, 1))

    def rank(number: int, group: Group, seen: float) -> MemoryTrace:
        records = [call(1, 8 + 2 * number, State.STARTED, group=group)]
        return copied(trace_of(number, 2, [first, other], records, mode="record"), seen)

    found = judge([rank(0, first, second), rank(1, other, 15)]).findings
    assert [finding.code for finding in found] == codes


def test_an_early_copy_does_not_tell_what_its_rank_did_later() -> None:
    early = copied(busy(3, until=12), 15)
    report = judge([waiting(0), waiting(1), copied(busy(2, until=100), 100), early])
    assert report.findings == () or 3 not in only(report).culprits


def test_a_rank_that_ended_is_proved_to_be_gone() -> None:
    finding = only(judge([waiting(0), waiting(1), waiting(2), busy(3, events=[EXIT])]))
    assert (finding.code, finding.culprits, finding.severity) == ("SC702", (3,), Severity.ERROR)


def test_a_cycle_is_proved_unless_ranks_have_threads() -> None:
    first, second = Group("1", "", (0, 1)), Group("2", "", (0, 1))

    def rank(number: int, group: Group, *before: Record) -> MemoryTrace:
        records = [*before, call(1, 10, State.STARTED, group=group)]
        return trace_of(number, 2, [WORLD, first, second], records, mode="record")

    assert only(judge([rank(0, first), rank(1, second)])).code == "SC204"
    early = replace(rank(0, first), seen_ns=11 * SECOND)
    assert only(judge([early, replace(rank(1, second), seen_ns=12 * SECOND)])).code == "SC204"
    # Copies: the first rank may have gone on by then.
    late = trace_of(1, 2, [WORLD, first, second], [call(1, 13, State.STARTED, group=second)], mode="record")
    assert judge([early, replace(late, seen_ns=14 * SECOND)]).findings == ()
    at_once = [call(1, 1, State.COMPLETED, finished=3), call(2, 2, State.COMPLETED, finished=4)]
    assert judge([rank(0, first, *at_once), rank(1, second, *at_once)]).findings == ()


@pytest.mark.parametrize("kind", ["finished", "failed"])
def test_what_a_rank_said_of_its_end_comes_first(kind: str) -> None:
    said = {"finished": [EXIT], "failed": [Event("exception", 11 * SECOND, {"type": "ValueError", "message": "x"})]}
    report = judge([box(rank, [call(1, 1, State.COMPLETED, finished=1.1)], said[kind]) for rank in range(4)])
    assert {finding.code for finding in report.findings} == ({"SC701"} if kind == "failed" else set())


def left_after(step: float, quiet: float) -> list[MemoryTrace]:
    """Rank 3's dump ends before the last call of the others, after which these made none for so many seconds."""
    calls = [ended(number, 1 + number * step) for number in range(1, 6)]
    last = 1 + 5 * step
    others = [dump(rank, calls, last + quiet + rank / 50) for rank in range(3)]
    return [*others, dump(3, calls[:-1], last - step + 0.003)]


@pytest.mark.parametrize(
    "traces",
    [
        pytest.param(left_after(0.2, quiet=0.5), id="at its pace"),
        pytest.param(left_after(0.01, quiet=0.2), id="soon"),
        pytest.param(left_after(0.01, quiet=0.5), id="silent since"),
    ],
)
def test_dumps_of_several_moments_are_a_note_that_names_the_call(traces: list[MemoryTrace]) -> None:
    report = judge(traces)
    assert report.findings == ()
    [note] = [note for note in report.notes if "not written at one moment" in note]
    assert "rank 3" in note
    assert "such as all_reduce #" in note
    assert "train.py:1" in note


def test_a_rank_that_waits_for_one_that_is_late_is_no_warning() -> None:
    *others, late = left_after(0.01, quiet=0.5)
    waits = [replace(trace, slots=trace.slots.copy()) for trace in others]
    for trace in waits:
        trace.slots["state"][-1] = State.SCHEDULED
    assert judge([*waits, late]).findings == ()


def test_where_a_rank_left_no_dump_the_call_in_which_the_others_end_is_noted() -> None:
    report = judge(left_after(0.01, quiet=0.5)[:3])
    assert report.findings == ()
    [note] = [note for note in report.notes if "rank 3, which left none" in note]
    assert "ranks 0-2 end with all_reduce #5" in note
