"""The threaded backend computes what the table says, for every spelling, dtype, reduce op and form, on real tensors."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any, TypeVar

import pytest

from simcoll.spec.collectives import METHODS
from simcoll.spec.semantics import Array

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402

from simcoll.backends.engine.parking import StuckError, WaitTimeoutError  # noqa: E402
from simcoll.backends.threaded.process_group import ThreadedProcessGroup, create_process_group  # noqa: E402
from simcoll.errors import CollectiveMismatchError  # noqa: E402
from tests.backends.engine.test_world_results import (  # noqa: E402
    FORMS,
    Case,
    assert_equal,
    available,
    cases,
    expected,
    launch,
    meaningful,
    numpy_of,
    tensor,
)

T = TypeVar("T")


def on_threads(size: int, program: Callable[[ThreadedProcessGroup], T], *, seconds: float = 30.0) -> list[T]:
    """Run ``program(group)`` on every rank of a group of its own; what they return, by rank."""
    store = dist.HashStore()

    def rank(place: int) -> T:
        return program(create_process_group(store, place, size, timedelta(seconds=seconds)))

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(rank, range(size)))


def outputs_of(group: ThreadedProcessGroup, case: Case) -> list[Array]:
    call = case.call(group.rank(), group.size())
    inputs = [tensor(array, case.dtype) for array in case.arrays(group.rank(), group.size())]
    in_place = METHODS[case.spelling][1].buffers == ("inout",)
    dtype = getattr(torch, case.dtype)
    outputs = inputs if in_place else [torch.zeros(buffer.shape, dtype=dtype) for buffer in call.outputs]
    launch(group, call, inputs, outputs)
    return [numpy_of(value) for value in outputs]


@pytest.mark.parametrize("size", [1, 2, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("spelling", [spelling for spelling in FORMS if available(spelling)])
def test_threaded_ranks_compute_the_result(spelling: str, size: int) -> None:
    todo = [case for case in cases(spelling) if meaningful(case, size) and case.reduce_op != "premul_sum"]
    results = on_threads(size, lambda group: [outputs_of(group, case) for case in todo])
    for place, case in enumerate(todo):
        for rank, wanted in enumerate(expected(case, size)):
            assert_equal(case, rank, results[rank][place], wanted)


def test_neither_autograd_nor_the_version_hears_of_a_result() -> None:
    def program(group: ThreadedProcessGroup) -> tuple[int, Any, list[float]]:
        leaf = torch.full((3,), float(group.rank()), requires_grad=True)
        doubled = leaf * 2
        before, made_by = doubled._version, doubled.grad_fn
        group.allreduce([doubled]).wait()
        assert doubled._version == before
        assert doubled.grad_fn is made_by
        doubled.sum().backward()
        return doubled._version, leaf.grad.tolist(), doubled.tolist()

    assert on_threads(2, program) == [(0, [2.0] * 3, [2.0] * 3)] * 2


def test_tensors_with_gaps_and_views_are_filled_where_they_lie() -> None:
    def program(group: ThreadedProcessGroup) -> Any:
        table = torch.zeros(3, 4)
        column = table[:, 1]
        column += group.rank() + 1
        group.allreduce([column]).wait()
        group.broadcast([table.t()[2:]]).wait()
        return table.tolist()

    assert on_threads(2, program) == [[[0.0, 3.0, 0.0, 0.0]] * 3] * 2


@pytest.mark.parametrize("name", ["float8_e4m3fn", "bfloat16", "float16", "complex64", "uint16", "int16", "bool"])
def test_every_dtype_moves_unchanged(name: str) -> None:
    dtype = getattr(torch, name)
    sent = torch.tensor([0, 1, 2, 1]).to(dtype)

    def program(group: ThreadedProcessGroup) -> Any:
        mine = sent.clone() if group.rank() == 0 else torch.zeros(4).to(dtype)
        group.broadcast([mine]).wait()
        return torch.equal(mine.view(torch.uint8), sent.view(torch.uint8))

    assert on_threads(3, program) == [True] * 3


def test_bfloat16_is_rounded_once() -> None:
    def program(group: ThreadedProcessGroup) -> float:
        value = torch.tensor([256.0 if group.rank() == 0 else 0.5]).bfloat16()
        group.allreduce([value]).wait()
        return float(value.item())

    # 256 + 4 * 0.5: one by one the halves would be lost.
    assert on_threads(5, program) == [258.0] * 5


def test_conjugated_tensors_are_read_as_they_look() -> None:
    def program(group: ThreadedProcessGroup) -> Any:
        value = torch.tensor([1 + 2j, 3 - 1j]).conj()
        parts = [torch.zeros(2, dtype=torch.complex64) for _ in range(2)]
        group.allgather([parts], [value]).wait()
        return parts[1].tolist()

    assert on_threads(2, program) == [[1 - 2j, 3 + 1j]] * 2


def test_messages_by_tag_and_from_any_source() -> None:
    def program(group: ThreadedProcessGroup) -> Any:
        if group.rank() == 0:
            works = [group.send([torch.full((2,), float(tag))], 1, tag) for tag in (1, 2)]
            return [work.wait() for work in works]
        first, second = torch.zeros(2), torch.zeros(2)
        group.recv([second], 0, 2).wait()
        work = group.recv_anysource([first], 1)
        work.wait()
        return first.tolist(), second.tolist(), work._source_rank()

    assert on_threads(2, program)[1] == ([1.0, 1.0], [2.0, 2.0], 0)


def test_a_coalesced_section_is_waited_for_as_one() -> None:
    def program(group: ThreadedProcessGroup) -> list[float]:
        values = [torch.full((1,), float(group.rank() + place)) for place in range(3)]
        group._start_coalescing(torch.device("cpu"))
        for value in values:
            group.allreduce([value])
        group._end_coalescing(torch.device("cpu")).wait()
        return [float(value.item()) for value in values]

    assert on_threads(2, program) == [[1.0, 3.0, 5.0]] * 2


def test_future_is_done_when_the_call_is_and_fails_when_it_does() -> None:
    def program(group: ThreadedProcessGroup) -> Any:
        good = group.allreduce([torch.ones(1)]).get_future().then(lambda done: done.value()[0].item())
        bad = group.allreduce([torch.ones(1 + group.rank())]).get_future()
        with pytest.raises(RuntimeError, match="SC102"):
            bad.wait()
        return good.wait()

    assert on_threads(2, program) == [2.0, 2.0]


def test_mismatch_is_raised_on_every_rank_and_the_next_call_works() -> None:
    def program(group: ThreadedProcessGroup) -> list[str]:
        operator: Any = dist.AllreduceOptions()
        operator.reduceOp = dist.ReduceOp.MAX if group.rank() == 1 else dist.ReduceOp.SUM
        with pytest.raises(CollectiveMismatchError) as caught:
            group.allreduce([torch.ones(2)], operator).wait()
        group.barrier().wait()
        return [finding.code for finding in caught.value.findings]

    assert on_threads(3, program) == [["SC104"]] * 3


def test_wait_ends_after_its_timeout() -> None:
    def program(group: ThreadedProcessGroup) -> bool:
        if group.rank() == 0:
            with pytest.raises(RuntimeError, match="failed to pass"):
                group.barrier().wait(timedelta(seconds=0.1))
        arrived.wait()
        return True

    arrived = threading.Barrier(2)
    assert on_threads(2, program) == [True, True]
    assert issubclass(WaitTimeoutError, StuckError)


def test_nobody_waits_for_a_rank_whose_thread_has_ended() -> None:
    store, errors = dist.HashStore(), []

    def rank(place: int) -> None:
        group = create_process_group(store, place, 2, timedelta(minutes=5))
        if place == 0:
            try:
                group.barrier().wait()
            except StuckError as error:
                errors.append(error)

    threads = [threading.Thread(target=rank, args=(place,)) for place in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # The error of a wait that has lasted for its timeout is another one.
    assert len(errors) == 1


def test_two_jobs_and_two_lives_in_one_store() -> None:
    store = dist.HashStore()

    def rank(job: str, place: int) -> list[float]:
        found = []
        for life in range(2):
            group = create_process_group(dist.PrefixStore(job, store), place, 2, timedelta(seconds=30))
            value = torch.full((1,), float(len(job) + life))
            group.allreduce([value]).wait()
            found.append(float(value.item()))
            group.shutdown()
        return found

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(rank, ["a", "a", "bcd", "bcd"], [0, 1, 0, 1]))
    assert results == [[2.0, 4.0]] * 2 + [[6.0, 8.0]] * 2
