"""SC801: a rank for which the others wait again and again, whatever the hosts' clocks say."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from simcoll.core.record import Event, Group, Record, State
from simcoll.spec.call import Buffer, Call
from simcoll.verifier.agreement.columns import GroupColumns
from simcoll.verifier.exit_code import exit_code
from simcoll.verifier.findings.finding import Severity
from simcoll.verifier.halts import stragglers as stragglers_module
from simcoll.verifier.postmortem import judge
from tests.support.traces import trace_of

BUFFER = (Buffer((4,), "float32"),)
CALL = Call("all_reduce", "allreduce", BUFFER, BUFFER, reduce_op="sum")
RANKS = 4
WORLD = Group("0", "default_pg", tuple(range(RANKS)))
SECOND = 10**9


def job(calls: int, late: Callable[[int, int], float], *, asynchronous: bool = False) -> list[object]:
    """``late(rank, call)``: how many seconds after the first a rank comes; each rank has a clock of its own."""
    traces: list[object] = []
    for rank in range(RANKS):
        records, clock = [], 1000 * SECOND + rank * 77 * SECOND
        for call in range(1, calls + 1):
            latest = max(late(other, call) for other in range(RANKS))
            begun, ended = clock + int(late(rank, call) * SECOND), clock + int((latest + 0.001) * SECOND)
            records.append(
                Record(
                    "0",
                    call,
                    CALL,
                    state=State.COMPLETED,
                    asynchronous=asynchronous,
                    scheduled_ns=begun,
                    finished_ns=ended,
                )
            )
            clock += int((latest + 0.01) * SECOND)
        traces.append(trace_of(rank, RANKS, [WORLD], records, mode="record", events=[Event("exit", clock, {})]))
    return traces


def test_a_rank_that_is_always_last_is_named_with_what_it_costs() -> None:
    report = judge(job(60, lambda rank, call: 0.2 if rank == 2 else 0.0))  # type: ignore[arg-type]
    [finding] = report.findings
    assert (finding.code, finding.severity, finding.culprits) == ("SC801", Severity.WARNING, (2,))
    assert "rank 2 came last to at least 90 % of 60 collectives" in finding.message
    assert "waited for it for 12 s of 13 s" in finding.message
    assert exit_code(report) == 0


def test_a_straggler_is_named_beside_one_long_wait() -> None:
    report = judge(job(60, lambda rank, call: 0.2 * (rank == 2) + 60 * (rank == 2 and call == 30)))  # type: ignore[arg-type]
    assert [(finding.code, finding.culprits) for finding in report.findings] == [("SC801", (2,))]


@pytest.mark.parametrize(
    "late",
    [
        lambda rank, call: 0.0,
        lambda rank, call: 0.3 * (rank == call % RANKS),
        lambda rank, call: 20.0 * (rank == 0 and call == 30),
        lambda rank, call: 0.001 * rank,
        lambda rank, call: 0.3 * (rank == 2 and call < 40),
    ],
    ids=["even", "in turn", "one evaluation", "too little", "for a while"],
)
def test_what_is_no_straggler(late: Callable[[int, int], float]) -> None:
    assert judge(job(60, late)).findings == ()  # type: ignore[arg-type]


def test_few_calls_and_asynchronous_ones_say_nothing() -> None:
    assert judge(job(10, lambda rank, call: 2.0 * (rank == 2))).findings == ()  # type: ignore[arg-type]
    assert judge(job(60, lambda rank, call: 0.2 * (rank == 2), asynchronous=True)).findings == ()  # type: ignore[arg-type]


@pytest.mark.parametrize(("wait", "named"), [(0.01, True), (0.15, False)], ids=["they waited", "they computed"])
def test_of_asynchronous_calls_only_the_time_counts_in_which_the_others_waited(wait: float, named: bool) -> None:
    traces = job(60, lambda rank, call: 0.2 * (rank == 2), asynchronous=True)
    for rank, trace in enumerate(traces):
        trace.slots["wait_us"] = 1 if rank == 2 else int(wait * 1e6)  # type: ignore[attr-defined]
    assert [finding.culprits for finding in judge(traces).findings] == [(2,)] * named  # type: ignore[arg-type]


def on_device(calls: int, late: Callable[[int, int], float], *, asynchronous: bool = False, unknown: int = 0) -> list:
    """The same, on devices: the hosts queue all calls at once, and are nowhere near when a device comes to one.

    Of rank ``unknown`` - 1 the device told nothing.
    """
    traces = []
    for rank in range(RANKS):
        records, clock = [], 1000 * SECOND + rank * 77 * SECOND
        for call in range(1, calls + 1):
            latest = max(late(other, call) for other in range(RANKS))
            times = {
                "scheduled_ns": 900 * SECOND + call,
                "started_ns": clock + int(late(rank, call) * SECOND),
                "finished_ns": clock + int((latest + 0.001) * SECOND),
            }
            told = rank != unknown - 1
            records.append(
                Record("0", call, CALL, state=State.COMPLETED, asynchronous=asynchronous, on_device=told, **times)
            )
            clock += int((latest + 0.01) * SECOND)
        traces.append(trace_of(rank, RANKS, [WORLD], records, mode="record", events=[Event("exit", clock, {})]))
    return traces


def test_devices_tell_who_came_last_where_hosts_run_ahead() -> None:
    [finding] = judge(on_device(60, lambda rank, call: 1.2 if rank == 1 else 0.0)).findings
    assert (finding.code, finding.culprits) == ("SC801", (1,))
    assert "rank 1 came last to at least 90 % of 60 collectives" in finding.message


def test_what_devices_wait_while_they_compute_is_not_lost() -> None:
    assert judge(on_device(60, lambda rank, call: 1.2 * (rank == 1), asynchronous=True)).findings == ()


def test_times_of_hosts_and_of_devices_are_never_compared() -> None:
    assert judge(on_device(60, lambda rank, call: 1.2 * (rank == 1), unknown=4)).findings == ()


@pytest.mark.parametrize("late", [lambda rank, call: 0.0, lambda rank, call: 1.2 * (rank == call % RANKS)])
def test_devices_that_wait_in_turn_name_nobody(late: Callable[[int, int], float]) -> None:
    assert judge(on_device(60, late)).findings == ()


def test_calls_are_looked_at_one_by_one_only_where_a_rank_may_have_cost_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[object] = []
    completed = stragglers_module._completed

    def counted(columns: GroupColumns, *, on_device: bool) -> object:
        looked.append(columns)
        return completed(columns, on_device=on_device)

    monkeypatch.setattr(stragglers_module, "_completed", counted)
    judge(job(60, lambda rank, call: 0.0))  # type: ignore[arg-type]
    assert not looked
    assert judge(job(60, lambda rank, call: 0.2 * (rank == 2))).findings  # type: ignore[arg-type]
    assert looked
