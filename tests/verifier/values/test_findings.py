"""SC901, SC902, SC903 on ranks of every kind: faults are found at the right rank and call, correct programs silent."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from simcoll.backends.engine.outcome import Outcome
from simcoll.backends.simulated import simulate
from simcoll.backends.simulated.comm import Comm
from simcoll.spec.semantics import REDUCE_OPS, undefined_reduction
from simcoll.verifier.agreement.columns import columns_of
from simcoll.verifier.findings.finding import Finding
from simcoll.verifier.values.digests import digested_calls
from simcoll.verifier.values.laws import wrong_results
from simcoll.verifier.values.non_finite import non_finite
from tests.support.effort import lines_run

RANKS = 3
DTYPES = ("bool", "uint8", "int8", "int16", "int32", "int64", "uint64", "float16", "float32", "float64", "complex64")


def run(program: Callable[[Comm], object], ranks: int = RANKS, values: str = "all") -> tuple[Finding, ...]:
    outcome: Outcome[object] = simulate(program, ranks, values=values)
    for error in outcome.exceptions.values():
        raise error
    return outcome.report.findings


def numbers(rank: int, shape: tuple[int, ...], dtype: str) -> Any:
    random = np.random.default_rng(rank)
    if dtype == "bool":
        return random.integers(0, 2, shape).astype(dtype)
    return (random.standard_normal(shape) * 50).astype(dtype)


def every_row(comm: Comm, dtype: str, spoils: str = "", at: int = 1) -> None:
    """Calls every row with a law; the result of ``spoils`` is wrong at one rank."""
    rank, size = comm.rank, comm.size

    def own(*shape: int) -> Any:
        return numbers(rank, shape, dtype)

    def call(spelling: str, inputs: list[Any], outputs: list[Any], **fields: Any) -> None:
        if spelling == spoils and rank == at:
            comm.spoil_next_result()
        comm.call(spelling, inputs, outputs, **fields)

    for reduce_op in REDUCE_OPS:
        if undefined_reduction(reduce_op, dtype) is None and (not spoils or reduce_op == "sum"):
            both = own(5, 7)
            call("allreduce", [both], [both], reduce_op=reduce_op)
            both = own(9)
            call("reduce", [both], [both], reduce_op=reduce_op, root=at)
            call("_reduce_scatter_base", [own(4 * size)], [own(4)], reduce_op=reduce_op)
            call("reduce_scatter", [own(3) for _ in range(size)], [own(3)], reduce_op=reduce_op)
    both = own(11)
    call("broadcast", [both], [both], root=2)
    call("allgather", [own(3, 2)], [own(3, 2) for _ in range(size)])
    call("_allgather_base", [own(5)], [own(5 * size)])
    call("gather", [own(4)], [own(4) for _ in range(size)] if rank == at else [], root=at)
    call("scatter", [own(6) for _ in range(size)] if rank == 0 else [], [own(6)], root=0)
    call("alltoall_base", [own(2 * size)], [own(2 * size)])
    rows = [1 + rank for _ in range(size)]
    splits = {"input_splits": rows, "output_splits": [1 + peer for peer in range(size)]}
    call("alltoall_base", [own(sum(rows), 2)], [own(sum(1 + peer for peer in range(size)), 2)], **splits)
    call("_allgather_base", [own(0)], [own(0)])


@pytest.mark.parametrize("dtype", DTYPES)
def test_correct_calls_of_every_row_and_dtype_are_silent(dtype: str) -> None:
    with np.errstate(all="ignore"):
        assert run(lambda comm: every_row(comm, dtype)) == ()


ROWS = {
    "allreduce": ("SC902", (1,)),
    "broadcast": ("SC902", (1,)),
    "allgather": ("SC902", (1,)),
    "_allgather_base": ("SC902", (1,)),
    "reduce": ("SC903", (1,)),
    "gather": ("SC903", (1,)),
    "_reduce_scatter_base": ("SC903", (1,)),
    "reduce_scatter": ("SC903", (1,)),
    "scatter": ("SC903", (1,)),
    "alltoall_base": ("SC903", (1,)),
}


@pytest.mark.parametrize("dtype", ["int16", "float32", "complex64"])
@pytest.mark.parametrize("spelling", ROWS)
def test_one_wrong_element_is_found_at_its_rank(spelling: str, dtype: str) -> None:
    with np.errstate(all="ignore"):
        [finding] = run(lambda comm: every_row(comm, dtype, spelling))
    assert (finding.code, finding.culprits) == ROWS[spelling]
    assert finding.sequence is not None


def test_two_ranks_with_other_results_are_told_apart_by_the_inputs() -> None:
    def program(comm: Comm) -> None:
        both = np.full(4, 1.0 + comm.rank, np.float32)
        if comm.rank == 0:
            comm.spoil_next_result()
        comm.call("allreduce", [both], [both], reduce_op="sum")

    [finding] = run(program, 2)
    assert (finding.code, finding.culprits) == ("SC902", (0,))


def test_an_error_that_ranks_share_names_nobody_unless_another_sum_is_right() -> None:
    """Each call is added up by two other ranks; the two that are alike and wrong may have it from the third."""

    def program(comm: Comm, before: int) -> None:
        for call in range(before + 1):
            both = np.ones(4, np.float32)
            if call == before and comm.rank < 2:
                comm.spoil_next_result()
            comm.call("allreduce", [both], [both], reduce_op="sum")

    named = [[(one.code, one.culprits) for one in run(partial(program, before=before))] for before in range(3)]
    assert sorted(named) == [[("SC902", ())], [("SC902", (0, 1))], [("SC902", (0, 1))]]


def test_a_result_that_is_wrong_on_all_ranks_is_a_wrong_result() -> None:
    def program(comm: Comm) -> None:
        for _ in range(2):
            both = np.ones(4, np.float32)
            comm.spoil_next_result()
            comm.call("allreduce", [both], [both], reduce_op="sum")

    [finding] = run(program)
    assert (finding.code, finding.culprits, finding.sequence) == ("SC903", (0, 1, 2), 1)
    assert "1 later call" in finding.message


def sums(*steps: Callable[[int], Any], reduce_op: str = "sum") -> Callable[[Comm], None]:
    """A program that reduces what each step gives a rank."""

    def program(comm: Comm) -> None:
        for step in steps:
            both = np.array(step(comm.rank), np.float32)
            comm.call("allreduce", [both], [both], reduce_op=reduce_op)

    return program


def test_who_put_the_first_nan_in_and_not_who_passed_it_on() -> None:
    nan = float("nan")
    [finding] = run(sums(lambda rank: [1.0], lambda rank: [nan if rank == 2 else 1.0], lambda rank: [nan]))
    assert (finding.code, finding.culprits, finding.sequence) == ("SC901", (2,), 2)
    assert "1 NaN element" in finding.message
    [finding] = run(sums(lambda rank: [nan]))
    assert (finding.code, finding.culprits) == ("SC901", ())


def test_an_infinity_in_a_sum_is_found() -> None:
    [finding] = run(sums(lambda rank: [1.0, float("inf") if rank == 1 else 0.0]))
    assert (finding.code, finding.culprits) == ("SC901", (1,))


@pytest.mark.parametrize("reduce_op", ["min", "max"])
def test_infinities_in_a_minimum_or_maximum_are_meant(reduce_op: str) -> None:
    none = float("inf") if reduce_op == "min" else float("-inf")
    assert run(sums(lambda rank: [none if rank else 3.0], reduce_op=reduce_op)) == ()


def test_masks_are_meant() -> None:
    assert run(sums(lambda rank: [float("-inf"), 1.0 * rank])) == ()

    def moved(comm: Comm) -> None:
        mask = np.array([0.0, float("-inf")], np.float32)
        comm.call("broadcast", [mask], [mask], root=0)
        comm.call("_allgather_base", [mask * (comm.rank + 1)], [np.zeros(2 * comm.size, np.float32)])

    with np.errstate(all="ignore"):
        assert run(moved) == ()


def padded(comm: Comm, times: int, spreads: bool) -> None:
    """Ranks exchange as many numbers as they have, and add up others."""
    mine = np.array([comm.rank, float("nan") if comm.rank == 1 else 1.0], np.float32)
    for _ in range(times):
        comm.call("_allgather_base", [mine], [np.zeros(2 * comm.size, np.float32)])
        both = mine[spreads:] * 1
        comm.call("allreduce", [both[:1]], [both[:1]], reduce_op="sum")


def test_nans_that_stand_for_missing_numbers_are_meant() -> None:
    for times in (3, 1):
        assert run(lambda comm, times=times: padded(comm, times, False)) == ()  # type: ignore[misc]
    for times, spreads in ((3, True), (1, True)):
        [finding] = run(lambda comm, times=times, spreads=spreads: padded(comm, times, spreads))  # type: ignore[misc]
        assert (finding.code, finding.culprits, finding.sequence) == ("SC901", (1,), 1)


def scaled(comm: Comm, recovers: bool) -> None:
    """The steps of a program that scales its losses: the first overflows."""
    for step in range(3):
        overflows = step == 0 or not recovers
        both = np.array([float("inf") if overflows and comm.rank == 1 else 1.0], np.float16)
        comm.call("allreduce", [both], [both], reduce_op="sum")


def test_overflows_while_a_loss_is_scaled_are_meant_unless_they_stay() -> None:
    assert run(lambda comm: scaled(comm, recovers=True)) == ()
    assert [one.code for one in run(lambda comm: scaled(comm, recovers=False))] == ["SC901"]


def test_the_work_on_overflows_grows_with_their_number_and_not_with_its_square() -> None:
    def program(comm: Comm) -> None:
        for value in (float("inf") * comm.rank if comm.rank else 1.0, 1.0):
            both = np.array([value], np.float32)
            comm.call("allreduce", [both], [both], reduce_op="sum")

    bad, good = digested_calls(columns_of(simulate(program, 2, values="all").traces))

    def judge(count: int) -> None:
        assert non_finite([*[bad] * count, good], True, []) == []

    few, many = (lines_run(partial(judge, count)) for count in (300, 6000))
    assert 19 * few < many < 21 * few


def test_sums_that_overflow_or_cancel_are_not_judged_wrong() -> None:
    large = 3e38
    assert run(sums(lambda rank: [large, -large])) == ()
    assert run(sums(lambda rank: [(-1.0) ** rank * 1e30, 1e-30 * rank])) == ()


@pytest.mark.parametrize("reduce_op", ["sum", "avg"])
def test_sums_beyond_the_largest_float64_are_not_judged(reduce_op: str) -> None:
    def program(comm: Comm) -> None:
        numbers = np.array([1e308, -1.0, -1e308])
        comm.call("allreduce", [numbers], [numbers], reduce_op=reduce_op)
        parts = np.full(2 * RANKS, 1e308)
        comm.call("_reduce_scatter_base", [parts], [np.zeros(2)], reduce_op=reduce_op)

    assert run(program) == ()


def test_damaged_sizes_are_not_judged() -> None:
    outcome: Outcome[object] = simulate(lambda comm: comm.all_reduce(np.ones(9, "float32")), RANKS, values="all")
    for event in (event for trace in outcome.traces for event in trace.events if event.kind == "values"):
        event.data["sent"] = {**dict(event.data["sent"]), "squares": -1.0}  # type: ignore[call-overload]
    [values] = digested_calls(columns_of(outcome.traces))
    assert wrong_results(values) is None


def test_nothing_is_looked_at_unless_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SIMCOLL_VALUES", raising=False)
    outcome = simulate(sums(lambda rank: [float("nan")]), RANKS)
    assert outcome.report.findings == ()
    assert not [event for trace in outcome.traces for event in trace.events if event.kind == "values"]


@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_wrong_result_is_the_cause_of_a_disagreement_that_follows(at: int) -> None:
    def program(comm: Comm) -> None:
        for step in range(3):
            if comm.rank == 1 and step == at:
                comm.spoil_next_result()
            size = np.array([8.0], np.float32)
            comm.call("broadcast", [size], [size], root=0)
            numbers = np.ones(int(size[0]) * 2 if step == 1 else 4, np.float32)
            comm.call("allreduce", [numbers], [numbers], reduce_op="sum")

    codes = [one.code for one in simulate(program, RANKS, values="all").report.findings]
    assert codes == {0: ["SC902"], 1: ["SC902", "SC102"], 2: ["SC902"]}[at]
