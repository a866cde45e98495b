"""A call in the wrong group is named where it explains a halt, and a skipped call is not taken for one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from benchmarks.verify_boxes import Job, write_job
from simcoll.blackbox.gather import gather
from simcoll.core.record import Group, Record, Source, State
from simcoll.core.trace import LaunchOutcome, MemoryTrace, RankExit, Stall, Trace
from simcoll.spec.call import Buffer, Call
from simcoll.verifier.findings.describe import advice_of
from simcoll.verifier.findings.finding import Finding, RankSource, Severity, Side
from simcoll.verifier.halts import wrong_group
from simcoll.verifier.halts.wrong_group import with_wrong_groups
from simcoll.verifier.postmortem import judge
from simcoll.verifier.program_text.parting import ran_by
from tests.support.traces import trace_of

SECOND = 10**9
WORLD, TWIN = Group("0", "default_pg", (0, 1, 2, 3)), Group("1", "", (0, 1, 2, 3))
PAIR, OWN = Group("2", "", (2, 3)), Group("3", "", (3,))
TP, DP = (Group("4", "", (0, 1)), Group("5", "", (2, 3))), (Group("6", "", (0, 2)), Group("7", "", (1, 3)))
GROUPS = (WORLD, TWIN, PAIR, OWN, *TP, *DP)
SIZES = {7: 4, 8: 4, 9: 8}


def job(
    programs: Mapping[int, Sequence[tuple[int, Group]]], open_from: Mapping[int, int], file: str = "train.py"
) -> list[MemoryTrace]:
    """Each rank's calls, of one helper, as the line that called it and the group; those from a place on are open."""
    path = Path(file)
    text = [line.strip() for line in path.read_text().splitlines()] if path.exists() else [""] * 9
    traces = []
    for rank, program in programs.items():
        counts: dict[Group, int] = {}
        records = []
        for place, (line, group) in enumerate(program):
            counts[group] = counts.get(group, 0) + 1
            tensors = (Buffer((SIZES[line],), "float32"),)
            source = Source(file, 3, "mean", "dist.all_reduce(x)", (Source(file, line, "step", text[line - 1]),))
            waits = place >= open_from.get(rank, len(program))
            records.append(
                Record(
                    group.name,
                    counts[group],
                    Call("all_reduce", "allreduce", tensors, tensors, reduce_op="sum"),
                    source,
                    State.STARTED if waits else State.COMPLETED,
                    awaited=waits,
                    scheduled_ns=(place + 1) * SECOND,
                )
            )
        mine = [group for group in GROUPS if rank in group.ranks]
        traces.append(trace_of(rank, 4, mine, records, mode="record"))
    return traces


def halted(traces: Sequence[MemoryTrace], ended: Sequence[int] = ()) -> Finding:
    exits = {rank: RankExit(0 if rank in ended else None, 50 * SECOND) for rank in range(4)}
    [finding] = judge(traces, LaunchOutcome(exits), Stall(100 * SECOND, 130 * SECOND)).findings
    return finding


def named(finding: Finding, group: Group, expected: Group, rank: int = 3) -> bool:
    made = f"rank {rank} made its all_reduce at train.py:3 in mean in group {group.name} "
    return (
        finding.message.startswith(made)
        and f"where the others' call from that line is in group {expected.name} " in finding.message
        and finding.culprits == (rank,)
        and "group" in advice_of(finding)
    )


@pytest.mark.parametrize("wrong", [TWIN, PAIR], ids=["same members", "fewer members"])
def test_the_wrong_group_of_a_cycle_is_named(wrong: Group) -> None:
    calls = [(7, WORLD)] * 3
    odd = [*calls[:2], (7, wrong)]
    finding = halted(job({0: calls, 1: calls, 2: calls, 3: odd}, dict.fromkeys(range(4), 2)))
    assert finding.code == "SC204"
    assert named(finding, wrong, WORLD)


def test_the_wrong_group_is_named_where_its_call_met_another_one() -> None:
    """Rank 3 took its data-parallel group for one call, which met the next one of rank 1: the cycle is longer."""
    programs = {rank: [(7, TP[rank // 2]), (8, DP[rank % 2])] * 3 for rank in range(4)}
    programs[3][2] = (7, DP[1])
    programs = {0: programs[0][:4], 1: programs[1][:5], 2: programs[2][:3], 3: programs[3][:4]}
    finding = halted(job(programs, {0: 3, 1: 4, 2: 2, 3: 3}))
    assert finding.code == "SC204"
    assert named(finding, DP[1], TP[1])


def test_the_wrong_group_of_an_earlier_call_is_named_where_others_wait_in_vain() -> None:
    """The call in a group of one rank ended at once; from there on rank 3 is one call behind the others."""
    calls = [(7, WORLD)] * 5
    odd = [*calls[:2], (7, OWN), *calls[3:]]
    finding = halted(job({0: calls, 1: calls, 2: calls, 3: odd}, dict.fromkeys(range(3), 4)), ended=[3])
    assert finding.code == "SC702"
    assert named(finding, OWN, WORLD)


def test_the_wrong_group_of_a_call_that_met_other_calls_is_named() -> None:
    """Rank 2 takes the group of all ranks, in which ranks 0 and 1 have come to another call."""
    programs = {rank: [(7, TP[rank // 2])] * 2 + [(9, WORLD)] for rank in range(4)}
    programs[2] = [(7, TP[1]), (7, WORLD)]
    programs[3] = programs[3][:2]
    finding = halted(job(programs, {0: 2, 1: 2, 2: 1, 3: 1}))
    assert finding.code == "SC102"
    assert named(finding, WORLD, TP[1], rank=2)


PROGRAM = """
def mean(x, group):
    dist.all_reduce(x)

def step(pair, whole):
    group = pair if rank == 2 else whole
    mean(x, group)

    mean(y, pair)
"""


def test_the_condition_that_chose_the_wrong_group_is_named_where_others_have_no_line(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(PROGRAM)
    programs = {rank: [(7, WORLD), (9, TP[rank // 2])] * 3 for rank in range(4)}
    programs[2][2] = (7, TP[1])
    traces = job(programs, {}, str(path))
    made = Side((2,), traces[2].signatures[0], (RankSource(2, traces[2].sources[0]),))
    sides = made, Side((3,), None, (), note="made no such call")
    finding = Finding("SC202", Severity.ERROR, "", TP[1], sequence=2, ranks=(2, 3), culprits=(2,), sides=sides)
    [told] = with_wrong_groups([finding], traces, ran_by(traces))
    assert told.differing == ("group",)
    assert told.parted is not None
    assert told.parted.source.code == "group = pair if rank == 2 else whole"
    assert told.parted.sides == (((2,), "found it true"), ((0, 1, 3), "found it false"))


def test_a_skipped_call_of_a_line_that_serves_two_groups_is_no_wrong_group() -> None:
    """Rank 3 left out one call of a loop over its groups: the call that follows is the right one."""
    programs = {rank: [(7, TP[rank // 2]), (7, DP[rank % 2])] * 3 for rank in range(4)}
    del programs[3][2]
    programs = {0: programs[0], 1: programs[1], 2: programs[2][:5], 3: programs[3]}
    finding = halted(job(programs, {0: 5, 2: 4}), ended=[1, 3])
    assert (finding.code, finding.culprits) == ("SC702", (3,))
    assert finding.message.startswith("rank 3 had ended")


def test_two_orders_of_two_groups_are_no_wrong_group() -> None:
    calls = [(7, WORLD), (8, TWIN)] * 2
    odd = [*calls[:2], (8, TWIN)]
    finding = halted(job({0: calls[:3], 1: calls[:3], 2: calls[:3], 3: odd}, dict.fromkeys(range(4), 2)))
    assert (finding.code, finding.culprits) == ("SC204", (3,))
    assert finding.message.startswith("none of them can go on")


def test_one_rank_against_one_other_names_none() -> None:
    one, other = Group("a", "", (2, 3)), Group("b", "", (2, 3))
    traces = []
    for rank, group in ((2, one), (3, other)):
        tensors = (Buffer((4,), "float32"),)
        call = Call("all_reduce", "allreduce", tensors, tensors, reduce_op="sum")
        record = Record(group.name, 1, call, Source("train.py", 3, "mean"), State.STARTED, awaited=True, scheduled_ns=9)
        traces.append(trace_of(rank, 4, [one, other], [record], mode="record"))
    finding = halted(traces)
    assert (finding.code, finding.culprits) == ("SC204", ())
    assert finding.message.startswith("none of them can go on")


def test_who_lacks_a_call_is_looked_for_once_of_ranks_that_all_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks, looked = 24, 0
    write_job(Job("each unlike", ranks, 32), tmp_path / "job")
    row = wrong_group._row

    def counted(trace: Trace, group: Group, sequence: int) -> int | None:
        nonlocal looked
        looked += 1
        return row(trace, group, sequence)

    monkeypatch.setattr(wrong_group, "_row", counted)
    findings = judge(gather([tmp_path / "job"]).traces).findings
    assert [len(one.sides) for one in findings] == [ranks]
    assert looked <= 4 * ranks
