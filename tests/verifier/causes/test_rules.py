"""Who should act: each rule on a job made for it, the order of belief, and the page that is written from the rules."""

from __future__ import annotations

import runpy
import signal
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from simcoll.core.record import Event, Group, Record, Source, State
from simcoll.core.trace import LaunchOutcome, MemoryTrace, RankExit, Stall
from simcoll.spec.call import Buffer, Call
from simcoll.verifier.agreement.p2p_matching import Matching
from simcoll.verifier.causes.advise import advise
from simcoll.verifier.causes.facts import HostFacts, JobFacts, LostNode, RasRank
from simcoll.verifier.causes.kernel_log import kernel_events
from simcoll.verifier.causes.rules import RULE_LIST
from simcoll.verifier.findings.causes import Advice, Cause, Restart, Strength
from simcoll.verifier.findings.finding import Finding, Parting
from simcoll.verifier.findings.rules import RULES
from simcoll.verifier.halts.job import Job
from simcoll.verifier.postmortem import judge
from tests.support.traces import trace_of

DOCS = Path(__file__).parents[3] / "docs"
SECOND = 10**9
DATED = "2025-11-24T01:02:03,250000+00:00 "
XID = "NVRM: Xid (PCI:0000:3b:00): {}, pid=77, name=python, said"
TENSORS = (Buffer((4,), "float32"),)
SUM = Call("all_reduce", "allreduce", TENSORS, TENSORS, reduce_op="sum")
LINE = ["train.py", 41, "step", "dist.all_reduce(x)"]
Raised = Mapping[int, tuple[str, str]]
STRONG_NO = (Strength.STRONG, Restart.NO)
WEAK = (Strength.WEAK, Restart.UNKNOWN)


def traces(
    ranks: int, raised: Raised, *, failed: Sequence[int] = (), calls: Mapping[int, Call] = {}
) -> list[MemoryTrace]:
    """One all_reduce that ended on every rank, then what ``raised`` says; it failed on the ranks ``failed``."""
    group = Group("0", "default_pg", tuple(range(ranks)))
    made = []
    for rank in range(ranks):
        ended = State.FAILED if rank in failed else State.COMPLETED
        call = calls.get(rank, SUM)
        times = {"scheduled_ns": SECOND, "finished_ns": 2 * SECOND}
        record = Record("0", 1, call, Source("train.py", 41, "step"), ended, **times)
        events = []
        if rank in raised:
            kind, message = raised[rank]
            data = {"type": kind, "message": message, "source": LINE}
            events.append(Event("exception", (3 + rank) * SECOND, data))
        made.append(trace_of(rank, ranks, [group], [record], events=events))
    return made


def outcome(ranks: int, codes: Mapping[int, int]) -> LaunchOutcome:
    """``codes`` are those of ranks that failed; the launcher stopped the others."""
    stopped = RankExit(-signal.SIGTERM, 9 * SECOND, stopped=True)
    return LaunchOutcome(
        {rank: RankExit(codes[rank], 4 * SECOND) if rank in codes else stopped for rank in range(ranks)}
    )


def facts(
    ranks: int = 4,
    lines: Sequence[str] = (),
    *,
    host: str = "node-1",
    kills: int | None = None,
    per_node: int = 2,
    hits: int | None = None,
) -> JobFacts:
    """Two ranks a node; what one node's kernel said."""
    hosts = {rank: f"node-{rank // per_node}" for rank in range(ranks)}
    known = HostFacts(host, tuple(kernel_events(lines)), kernel_read=True, oom_kills=kills, limit_hits=hits)
    return JobFacts(hosts, {rank: 1000 + rank for rank in range(ranks)}, (known,))


def advice(
    raised: Raised | None = None,
    codes: Mapping[int, int] | None = None,
    known: JobFacts | None = None,
    *,
    ranks: int = 4,
    failed: Sequence[int] = (),
    calls: Mapping[int, Call] = {},
) -> Advice:
    ends = outcome(ranks, codes if codes is not None else dict.fromkeys(raised or (), 1))
    report = judge(traces(ranks, raised or {}, failed=failed, calls=calls), ends, None, known or facts(ranks))
    assert report.advice is not None
    return report.advice


def believed(told: Advice) -> tuple[str, Cause, Strength, Restart]:
    one = told.believed
    return one.rule, one.cause, one.strength, one.restart


def test_the_page_is_written_from_the_rules() -> None:
    page = runpy.run_path(str(DOCS / "causes.py"))["page"]()
    assert (DOCS / "causes.md").read_text(encoding="utf-8") == page, "run: python docs/causes.py"


def test_names_are_told_apart() -> None:
    names = [rule.name for rule in RULE_LIST]
    assert len(set(names)) == len(names)
    assert all(rule.find.__doc__ for rule in RULE_LIST)


def test_a_job_that_ended_well_gets_no_advice() -> None:
    ends = LaunchOutcome({rank: RankExit(0, 9 * SECOND) for rank in range(2)})
    assert judge(traces(2, {}), ends, None, facts(2, [DATED + XID.format(79)], host="node-0")).advice is None


def test_where_nothing_is_known_of_hosts_there_is_no_advice() -> None:
    assert judge(traces(2, {0: ("ValueError", "x")}), outcome(2, {0: 1})).advice is None


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        (
            "Error while creating shared memory segment /dev/shm/nccl-x, error: No space left on device (28)",
            ("told by the exception", Cause.MACHINE, *STRONG_NO),
        ),
        (
            "socketStartConnect: Connect to 10.0.0.3<5> failed : Software caused connection abort",
            ("lost connections", Cause.NETWORK, Strength.STRONG, Restart.YES),
        ),
        (
            "socketStartConnect: Connect to 10.0.0.3<5> failed : No route to host",
            ("lost connections", Cause.NETWORK, Strength.STRONG, Restart.UNKNOWN),
        ),
    ],
)
def test_a_system_error_of_nccl_is_what_its_last_line_says(
    last: str, expected: tuple[str, Cause, Strength, Restart]
) -> None:
    message = f"NCCL error in: x, unhandled system error, NCCL version 2.27\nncclSystemError: System call\n{last}"
    assert believed(advice({2: ("DistBackendError", message)})) == expected


def test_calls_that_disagree_are_the_programs() -> None:
    told = advice(calls={1: replace(SUM, reduce_op="max")}, codes={0: 1, 1: 1, 2: 1, 3: 1})
    assert believed(told) == ("calls disagree", Cause.PROGRAM, *STRONG_NO)
    assert told.believed.evidence[0].source == "SC104"


@pytest.mark.parametrize(
    ("kind", "message", "expected"),
    [
        ("NameError", "name 'x'", ("told by the exception", Cause.PROGRAM, *STRONG_NO)),
        ("MemoryError", "", ("told by the exception", Cause.PROGRAM, *STRONG_NO)),
        ("OSError", "[Errno 28] No space left on device: 'x'", ("told by the exception", Cause.MACHINE, *STRONG_NO)),
        (
            "OSError",
            "[Errno 5] Input/output error: 'x'",
            ("told by the exception", Cause.MACHINE, Strength.STRONG, Restart.WITHOUT_HOSTS),
        ),
        ("OSError", "[Errno 116] Stale file handle: 'x'", ("told by the exception", Cause.NETWORK, *WEAK)),
        ("OutOfMemoryError", "CUDA out of memory.", ("device error", Cause.PROGRAM, *STRONG_NO)),
        (
            "AcceleratorError",
            "CUDA error: uncorrectable ECC error encountered",
            ("device error", Cause.MACHINE, Strength.STRONG, Restart.WITHOUT_HOSTS),
        ),
        ("AcceleratorError", "CUDA error: an illegal memory access", ("device error", Cause.PROGRAM, *WEAK)),
        ("ValueError", "bad record", ("failed alone", Cause.RANK, *WEAK)),
    ],
)
def test_the_exception_of_one_rank(kind: str, message: str, expected: object) -> None:
    told = advice({3: (kind, message)})
    assert believed(told) == expected
    assert told.believed.ranks == (3,)
    assert told.believed.hosts == (("node-1",) if told.believed.cause is Cause.MACHINE else ())


def test_all_ranks_that_fail_alike_are_the_program() -> None:
    told = advice(dict.fromkeys(range(4), ("ValueError", "no such optimizer: adamx")))
    assert believed(told) == ("alike on all ranks", Cause.PROGRAM, *STRONG_NO)


@pytest.mark.parametrize("kind", ["ConnectionError", "ReadTimeoutError", "HTTPError", "OSError"])
def test_a_service_that_all_ranks_use_may_come_back(kind: str) -> None:
    told = advice(dict.fromkeys(range(4), (kind, "the bucket does not answer")))
    assert believed(told) == ("alike on all ranks", Cause.UNKNOWN, *WEAK)


def test_some_that_fail_alike_are_not() -> None:
    assert believed(advice(dict.fromkeys((0, 1), ("ValueError", "x")))) == ("failed alone", Cause.RANK, *WEAK)


@pytest.mark.parametrize("code", [-signal.SIGSEGV, -signal.SIGBUS, 128 + signal.SIGSEGV])
def test_a_crash(code: int) -> None:
    assert believed(advice(codes={2: code})) == ("crash", Cause.RANK, *WEAK)


@pytest.mark.parametrize("code", [-signal.SIGKILL, 128 + signal.SIGKILL])
def test_a_kill_by_nobody_knows_whom(code: int) -> None:
    assert believed(advice(codes={2: code})) == ("ended from outside", Cause.UNKNOWN, *WEAK)


@pytest.mark.parametrize("code", [-signal.SIGKILL, 128 + signal.SIGKILL])
def test_a_kill_that_was_not_for_memory(code: int) -> None:
    told = advice(codes={2: code}, known=facts(kills=0))
    assert believed(told) == ("ended from outside", Cause.UNKNOWN, Strength.WEAK, Restart.YES)


def test_a_kill_in_the_memory_cgroup() -> None:
    told = advice(codes={2: -signal.SIGKILL}, known=facts(kills=1, hits=1))
    assert believed(told) == ("killed for memory", Cause.PROGRAM, *STRONG_NO)
    assert told.believed.evidence[0].source == "memory cgroup of node-1"


@pytest.mark.parametrize("hits", [None, 0])
def test_a_kill_in_the_memory_cgroup_for_which_the_host_may_have_had_no_memory(hits: int | None) -> None:
    told = advice(codes={2: -signal.SIGKILL}, known=facts(kills=1, hits=hits))
    assert believed(told) == ("killed for memory", Cause.PROGRAM, *WEAK)


def test_a_kill_in_the_kernels_log_by_its_process() -> None:
    line = "Memory cgroup out of memory: Killed process 1002 (python) total-vm:2623712kB"
    assert believed(advice(codes={2: -9}, known=facts(4, [line]))) == ("killed for memory", Cause.PROGRAM, *STRONG_NO)
    other = facts(4, [line.replace("1002", "7")])
    assert believed(advice(codes={2: -9}, known=other))[0] == "ended from outside"


@pytest.mark.parametrize("end", ["is killed by signal: Killed. ", "exited unexpectedly"])
def test_a_worker_of_a_data_loader_that_is_killed(end: str) -> None:
    raised = {2: ("RuntimeError", f"DataLoader worker (pid(s) 811, 812) {end}")}
    assert believed(advice(raised, known=facts(kills=1))) == ("killed for memory", Cause.PROGRAM, *WEAK)
    assert believed(advice(raised, known=facts(kills=0))) == ("failed alone", Cause.RANK, *WEAK)


RESET = ("RuntimeError", "[gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.99.0.2]:4242")


@pytest.mark.parametrize("closed", [False, True])
def test_a_node_that_was_lost(closed: bool) -> None:
    """Its silence may be the network's; a connection that its system closed came over the network."""
    known = facts()
    lost = HostFacts("node-0", lost=(LostNode(1, "node-1", (2, 3), 11.0, closed=closed),))
    told = advice({0: RESET, 1: RESET}, known=replace(known, by_host=(lost,)), failed=(0, 1))
    assert believed(told) == ("lost node", Cause.MACHINE if closed else Cause.NETWORK, *WEAK)
    assert (told.believed.ranks, told.believed.hosts) == ((2, 3), ("node-1",) if closed else ())
    assert told.believed.evidence[0].source == "launcher on node-0"
    own = advice({0: ("ValueError", "x"), 1: RESET}, known=replace(known, by_host=(lost,)), failed=(0, 1))
    assert believed(own)[0] == "failed alone"


def test_a_job_that_stands_without_the_ranks_of_a_lost_node() -> None:
    """Of these there is no record, so that none is known to be missing."""
    group = Group("0", "default_pg", (0, 1, 2, 3))
    open_call = Record("0", 1, SUM, Source("train.py", 41, "step"), State.STARTED, awaited=True, scheduled_ns=SECOND)
    here = [trace_of(rank, 4, [group], [open_call]) for rank in (0, 1)]
    lost = HostFacts("node-0", lost=(LostNode(1, "node-1", (2, 3), 25.0),))
    ends = LaunchOutcome({rank: RankExit(-signal.SIGTERM, 40 * SECOND, stopped=True) for rank in (0, 1)})
    stall = Stall(SECOND, 17 * SECOND, blocked=frozenset({0, 1}))
    report = judge(here, ends, stall, replace(facts(), by_host=(lost,)))
    assert [(one.code, one.culprits) for one in report.findings] == [("SC201", ())]
    assert "ranks 2-3 left no record here" in report.findings[0].message
    assert report.advice is not None
    assert believed(report.advice) == ("lost node", Cause.NETWORK, *WEAK)


def test_a_host_without_memory() -> None:
    line = "Out of memory: Killed process 1002 (python) total-vm:2623712kB"
    assert believed(advice(codes={2: -9}, known=facts(4, [line], kills=1))) == (
        "killed for memory",
        Cause.MACHINE,
        *WEAK,
    )


@pytest.mark.parametrize("number", [48, 74, 79, 95, 119])
def test_a_fault_of_the_gpu_on_the_host_of_the_rank_that_failed(number: int) -> None:
    told = advice({2: ("AcceleratorError", "CUDA error: unspecified")}, known=facts(4, [DATED + XID.format(number)]))
    assert believed(told) == ("hardware fault", Cause.MACHINE, Strength.STRONG, Restart.WITHOUT_HOSTS)
    assert (told.believed.ranks, told.believed.hosts) == ((2,), ("node-1",))
    assert told.believed.evidence[0].source == "kernel log of node-1"


def test_a_contained_error_of_memory_needs_a_restart_only() -> None:
    told = advice({2: ("AcceleratorError", "CUDA error")}, known=facts(4, [DATED + XID.format(94)]))
    assert believed(told) == ("hardware fault", Cause.MACHINE, Strength.STRONG, Restart.YES)


@pytest.mark.parametrize(
    ("lines", "host"),
    [([XID.format(79)], "node-1"), ([DATED + XID.format(79)], "node-0")],
    ids=["no time", "another host"],
)
def test_a_fault_that_need_not_be_the_cause_is_told_beside_it(lines: list[str], host: str) -> None:
    told = advice({2: ("ValueError", "x")}, known=facts(4, lines, host=host))
    assert believed(told) == ("failed alone", Cause.RANK, *WEAK)
    assert [(one.rule, one.cause, one.hosts) for one in told.others] == [
        ("other hardware fault", Cause.MACHINE, (host,))
    ]


@pytest.mark.parametrize("number", [13, 31, 43, 45, 63, 92, 154, 999])
def test_other_xids_prove_nothing(number: int) -> None:
    told = advice({2: ("ValueError", "x")}, known=facts(4, [DATED + XID.format(number)]))
    assert (believed(told)[0], told.others) == ("failed alone", ())


def test_an_xid_of_the_work_is_quoted_beside_a_device_error() -> None:
    told = advice({2: ("AcceleratorError", "CUDA error: an illegal memory access")}, known=facts(4, [XID.format(31)]))
    assert [one.source for one in told.believed.evidence] == ["exception", "kernel log of node-1"]


def test_a_proved_disagreement_comes_before_a_fault_of_hardware() -> None:
    known = facts(4, [DATED + XID.format(79)])
    told = advice(calls={2: replace(SUM, reduce_op="max")}, codes=dict.fromkeys(range(4), 1), known=known)
    assert believed(told)[0] == "calls disagree"
    assert [one.rule for one in told.others] == ["hardware fault"]


CLOSED = ("RuntimeError", "[../third_party/gloo/pair.cc:534] Connection closed by peer [10.0.0.2]:1234")


def test_lost_connections_between_hosts() -> None:
    told = advice(dict.fromkeys(range(4), CLOSED), failed=range(4))
    assert believed(told) == ("lost connections", Cause.NETWORK, Strength.STRONG, Restart.YES)


def test_lost_connections_on_one_host() -> None:
    told = advice(dict.fromkeys(range(4), CLOSED), failed=range(4), known=facts(4, per_node=4, host="node-0"))
    assert believed(told) == ("lost connections", Cause.NETWORK, *WEAK)


def test_lost_connections_where_not_all_ends_are_known() -> None:
    report = judge(traces(4, dict.fromkeys(range(4), CLOSED), failed=range(4)), None, None, facts(4))
    assert report.advice is not None
    assert believed(report.advice) == ("lost connections", Cause.NETWORK, *WEAK)


def test_ranks_that_ras_cannot_reach() -> None:
    ras = (
        RasRank(0, "10.0.0.1", 1000),
        RasRank(1, "10.0.0.1", 1001),
        RasRank(2, "10.0.0.2", 1002, missing=True, unresponsive=True, dead=True),
        RasRank(3, "10.0.0.2", 1003, missing=True, unresponsive=True),
    )
    told = advice(dict.fromkeys((0, 1), CLOSED), failed=(0, 1), known=replace(facts(4), ras=ras))
    assert believed(told) == ("missing in RAS", Cause.MACHINE, *WEAK)
    assert told.believed.ranks == (2, 3)
    assert "considered dead" in told.believed.evidence[0].text


def standing(stopped: frozenset[int]) -> Advice:
    """Three ranks wait in the second call for rank 3."""
    group = Group("0", "default_pg", (0, 1, 2, 3))
    line = Source("train.py", 41, "step")
    first = Record("0", 1, SUM, line, State.COMPLETED, scheduled_ns=SECOND, finished_ns=2 * SECOND)
    second = Record("0", 2, SUM, line, State.STARTED, scheduled_ns=3 * SECOND, awaited=True)
    made = [trace_of(rank, 4, [group], [first] + [second] * (rank != 3)) for rank in range(4)]
    stall = Stall(
        3 * SECOND, 40 * SECOND, {3: Source("train.py", 9, "load")}, blocked=frozenset({0, 1, 2}), stopped=stopped
    )
    ends = LaunchOutcome({rank: RankExit(-signal.SIGTERM, 41 * SECOND, stopped=True) for rank in range(4)})
    report = judge(made, ends, stall, facts(4))
    assert report.advice is not None
    return report.advice


def test_a_process_that_is_stopped() -> None:
    told = standing(frozenset({3}))
    assert believed(told) == ("stopped process", Cause.RANK, Strength.STRONG, Restart.YES)
    assert told.believed.ranks == (3,)


def test_a_rank_that_does_not_come() -> None:
    assert believed(standing(frozenset())) == ("missing rank", Cause.RANK, *WEAK)


def test_a_job_that_failed_before_any_group() -> None:
    plain = [replace(one, groups=(), slots=one.slots[:0]) for one in traces(2, {0: ("ImportError", "no module x")})]
    report = judge(plain, outcome(2, {0: 1}), None, facts(2))
    assert report.advice is not None
    assert believed(report.advice) == ("failed alone", Cause.RANK, *WEAK)
    none = judge((), outcome(2, {0: -signal.SIGSEGV}), None, facts(2))
    assert none.advice is not None
    assert believed(none.advice)[0] == "crash"


GROUP = Group("0", "default_pg", (0, 1, 2, 3))


def of_finding(finding: Finding, *handled: Event, ranks: int = 4) -> Advice:
    """The advice on a job of which this is the only finding; rank 3 has handled exceptions."""
    made = [trace_of(rank, ranks, [GROUP], [], events=handled if rank == 3 else ()) for rank in range(ranks)]
    told = advise(Job.of(made, None, None, [], Matching()), [finding], ranks, facts(ranks))
    assert told is not None
    return told


@pytest.mark.parametrize("code", ["SC902", "SC903"])
def test_values_that_one_rank_has_wrong_are_its_machines_perhaps(code: str) -> None:
    told = of_finding(RULES[code].finding("values", group=GROUP, ranks=GROUP.ranks, culprits=(3,)))
    assert believed(told) == ("wrong values", Cause.MACHINE, *WEAK)
    assert (told.believed.ranks, told.believed.hosts) == ((3,), ("node-1",))


def test_values_that_nobody_is_named_for() -> None:
    told = of_finding(RULES["SC902"].finding("values", group=GROUP, ranks=GROUP.ranks))
    assert believed(told) == ("none", Cause.UNKNOWN, *WEAK)


@pytest.mark.parametrize("code", ["SC901", "SC904"])
def test_values_of_one_ranks_own(code: str) -> None:
    told = of_finding(RULES[code].finding("values", group=GROUP, ranks=(3,), culprits=(3,)))
    assert believed(told) == ("wrong values", Cause.RANK, *WEAK)


@pytest.mark.parametrize("code", ["SC202", "SC702"])
def test_calls_that_some_ranks_never_make(code: str) -> None:
    told = of_finding(RULES[code].finding("skipped", group=GROUP, ranks=GROUP.ranks, culprits=(3,)))
    assert believed(told) == ("calls left out", Cause.PROGRAM, *STRONG_NO)


@pytest.mark.parametrize(
    ("kind", "message", "cause"),
    [
        ("ValueError", "bad record", Cause.RANK),
        ("OSError", "[Errno 5] Input/output error: '/data/shard-17'", Cause.MACHINE),
    ],
)
def test_a_call_that_is_left_out_after_an_exception(kind: str, message: str, cause: Cause) -> None:
    parted = Parting(Source("train.py", 9, "load"), (((3,), f"raised {kind} there"), ((0, 1, 2), "did not")))
    skipped = RULES["SC202"].finding("skipped", group=GROUP, ranks=GROUP.ranks, culprits=(3,))
    handled = Event("handling", SECOND, {"type": kind, "message": message, "group": "0", "sequence": 1})
    told = of_finding(replace(skipped, parted=parted), handled)
    assert believed(told) == ("exception before the call", cause, *WEAK)
    assert told.believed.evidence[1].text == f"rank 3 handled {kind}: {message}"


def test_warnings_are_no_reason_for_advice() -> None:
    made = [trace_of(0, 1, [GROUP], [])]
    warning = RULES["SC801"].finding("late", group=GROUP, ranks=(0,))
    assert advise(Job.of(made, None, None, [], Matching()), [warning], 1, facts(1)) is None
