"""Values of torch programs on threads and on real Gloo: faults are found, training that is right stays silent."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

from simcoll.testing import try_ranks  # noqa: E402
from simcoll.values.faults import Alter, double_an_element, due_faults  # noqa: E402

RANKS = 2
BACKENDS = [pytest.param("threaded"), pytest.param("gloo", marks=[pytest.mark.slow, pytest.mark.gloo])]


def found(
    program: Callable[[int], object], backend: str, values: str = "all", ranks: int = RANKS
) -> list[tuple[str, tuple[int, ...]]]:
    outcome = try_ranks(ranks, program, backend=backend, values=values)
    for error in outcome.exceptions.values():
        raise error
    return [(one.code, one.culprits) for one in outcome.report.findings]


def train(rank: int, *, bad: int = -1, scaled: bool = False, dtype: str = "float32") -> None:
    torch.manual_seed(0)
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 1)).to(getattr(torch, dtype))
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**120 if scaled else 1.0, enabled=scaled)
    for step in range(8):
        x = torch.full((4, 6), 1.0 + rank + step, dtype=getattr(torch, dtype))
        loss = model(x).square().mean()
        if step == 2 and rank == bad:
            loss = loss * float("nan")
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_nan_in_the_gradients_of_one_rank(backend: str) -> None:
    assert found(lambda rank: train(rank, bad=1), backend) == [("SC901", (1,))]


@pytest.mark.parametrize("backend", BACKENDS)
def test_training_that_is_right_is_silent(backend: str) -> None:
    assert found(train, backend) == []
    assert found(lambda rank: train(rank, dtype="bfloat16"), backend) == []


@pytest.mark.parametrize("backend", BACKENDS)
def test_overflows_of_a_scaled_loss_are_meant(backend: str) -> None:
    assert found(lambda rank: train(rank, scaled=True), backend) == []


def spoilt(rank: int, *, asynchronous: bool, future: bool = False) -> None:
    for step in range(3):
        if step == 1 and rank == 1:
            due_faults.here.add(double_an_element)
        x = torch.arange(1.0, 9.0) * (rank + 1)
        work = dist.all_reduce(x, async_op=asynchronous)
        if work is not None:
            _ = work.get_future().wait() if future else work.wait()
        if step == 1 and rank == 1:
            assert x[4] == 30.0


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("asynchronous", "future"), [(False, False), (True, False), (True, True)])
def test_a_result_that_one_rank_gets_wrong(backend: str, asynchronous: bool, future: bool) -> None:
    def program(rank: int) -> None:
        spoilt(rank, asynchronous=asynchronous, future=future)

    assert found(program, backend) == [("SC902", (1,))]


def alter_the_last_bit(buffers: Sequence[Any]) -> None:
    """Change an element by less than sums of floats show."""
    buffers[0].view(torch.int32)[0] ^= 1


@pytest.mark.slow
@pytest.mark.parametrize("altered", [{0: double_an_element, 1: double_an_element}, {2: alter_the_last_bit}])
def test_whoever_adds_the_results_up_the_ranks_with_wrong_ones_are_named(altered: Mapping[int, Alter]) -> None:
    def program(rank: int, at: int) -> None:
        for call in range(3):
            if call == at and rank in altered:
                due_faults.here.add(altered[rank])
            dist.all_reduce(torch.arange(1.0, 200.0) * (rank + 1))

    for at in range(3):
        # Of the third call ranks 0 and 1 add the result up: rank 2 may as well have made wrong what both hold.
        named = () if at == 2 and len(altered) == 2 else tuple(altered)
        assert found(functools.partial(program, at=at), "threaded", ranks=3) == [("SC902", named)]


@pytest.mark.parametrize("mode", ["record", "check"])
@pytest.mark.slow
@pytest.mark.gloo
def test_in_every_mode(mode: str) -> None:
    import simcoll

    def program(rank: int) -> None:
        from simcoll.recorder.session import active_session

        session = active_session()
        assert session is not None
        simcoll.enable(mode, session.out, values="all")
        group = dist.new_group()
        x = torch.ones(4)
        if rank == 1:
            due_faults.here.add(double_an_element)
        work = dist.all_reduce(x, group=group, async_op=True)
        assert work is not None
        work.wait()

    assert found(program, "gloo") == [("SC902", (1,))]


def odd_tensors(rank: int) -> None:
    whole = torch.arange(24.0).reshape(2, 3, 2, 2)
    dense = whole.to(memory_format=torch.channels_last)
    dist.all_reduce(dense)
    dist.broadcast(dense, 0)
    dist.all_reduce(torch.empty(0))
    dist.all_reduce(torch.ones(()))
    dist.all_gather([torch.empty(3, 2) for _ in range(RANKS)], torch.ones(2, 3).t().contiguous())
    flags = torch.tensor([rank == 0, True])
    dist.all_reduce(flags)
    bytes_of_others = torch.tensor([0, 2, 255, 1], dtype=torch.uint8).view(torch.bool)
    dist.all_gather([torch.empty(4, dtype=torch.bool) for _ in range(RANKS)], bytes_of_others)
    dist.all_reduce(torch.eye(3).to_sparse())
    objects: list[object] = [None] * RANKS
    dist.all_gather_object(objects, {"rank": rank})
    dist.broadcast_object_list([rank, "text"], 0)


@pytest.mark.gloo
@pytest.mark.slow
def test_odd_tensors_are_silent() -> None:
    assert found(odd_tensors, "gloo") == []


def test_a_write_that_no_version_shows() -> None:
    def program(rank: int) -> None:
        x = torch.ones(10)
        work = dist.all_reduce(x, async_op=True)
        time.sleep(0.5)
        if rank == 1:
            x.numpy()[0] += 1
        assert work is not None
        work.wait()

    # With two ranks, what went in says whose result is wrong.
    assert found(program, "threaded") == [("SC902", (1,))]


def test_values_off_leave_no_digest() -> None:
    outcome = try_ranks(RANKS, lambda rank: train(rank, bad=1), backend="threaded", values="off")
    assert not [event for trace in outcome.traces for event in trace.events if event.kind == "values"]
    assert outcome.report.findings == ()


def test_a_large_tensor_in_inference_mode_and_then_one_outside() -> None:
    def program(rank: int) -> None:
        for mode in (True, False):
            with torch.inference_mode(mode):
                x = torch.ones(1 << 17)
                if rank == 1 and not mode:
                    due_faults.here.add(double_an_element)
                dist.all_reduce(x)

    outcome = try_ranks(RANKS, program, backend="threaded", values="all")
    assert not outcome.report.notes
    assert [(one.code, one.culprits) for one in outcome.report.findings] == [("SC902", (1,))]


def test_a_result_that_a_stream_waited_for_may_be_altered() -> None:
    def program(rank: int) -> None:
        for wait in ("synchronize", "block_current_stream"):
            x = torch.ones(3)
            work: Any = dist.all_reduce(x, async_op=True)
            while not work._inner.is_completed():
                time.sleep(0.001)
            # Not every backend has both; what it answers is the same.
            try:
                getattr(work, wait)()
            except RuntimeError:
                work.wait()
            x += rank
            work.wait()

    for backend in ("threaded", "gloo"):
        assert found(program, backend) == []


class Marked(torch.Tensor):  # type: ignore[misc,name-defined]
    """A tensor whose class has memory of torch's."""


def test_tensors_of_a_class_of_the_program_are_read() -> None:
    def program(rank: int) -> None:
        x = torch.full((4,), float("nan") if rank else 1.0)
        dist.all_reduce(x.as_subclass(Marked))

    assert found(program, "threaded") == [("SC901", (1,))]


class Refusing(torch.overrides.TorchFunctionMode):  # type: ignore[misc,name-defined]
    """The program forbids operations that a digest needs."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(function, "__name__", "") in ("cat", "detach"):
            raise RuntimeError(f"the program forbids {function}")
        return function(*args, **(kwargs or {}))


def test_modes_of_the_program_see_no_digest() -> None:
    def program(rank: int) -> None:
        x = torch.full((4,), float("nan") if rank else 1.0)
        work: Any = dist.all_reduce(x, async_op=True)
        with Refusing():
            work.wait()

    outcome = try_ranks(2, program, backend="threaded", values="all")
    assert (outcome.exceptions, outcome.report.notes) == ({}, ())
    assert [one.code for one in outcome.report.findings] == ["SC901"]


@pytest.mark.slow
@pytest.mark.gloo
def test_a_call_in_a_transform_ends_no_check() -> None:
    """Its tensor has no memory of its own."""

    def program(rank: int) -> None:
        def inner(x: Any) -> Any:
            mine = x.detach().clone()
            dist.all_reduce(mine)
            return (x * mine).sum()

        torch.func.grad(inner)(torch.ones(5))
        dist.all_reduce(torch.full((4,), float("nan") if rank else 1.0))

    outcome = try_ranks(2, program, backend="gloo", values="all")
    assert (outcome.exceptions, outcome.report.notes) == ({}, ())
    assert [(one.code, one.culprits) for one in outcome.report.findings] == [("SC901", (1,))]


def drifts(rank: int, drifting: int, at: int) -> None:
    """A metric of rank 1 is wrong after the second step, and rank ``drifting`` changes a weight after another one."""
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(6, 2))
    torch.manual_seed(rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(8):
        optimizer.zero_grad()
        model(torch.rand(4, 6)).square().mean().backward()
        optimizer.step()
        if step == 1:
            if rank == 1:
                due_faults.here.add(double_an_element)
            dist.all_reduce(torch.ones(4))
        if step == at and rank == drifting:
            with torch.no_grad():
                model.module.weight[0, 0] += 1


@pytest.mark.parametrize(
    ("drifting", "at", "codes"),
    [
        (1, 1, [("SC902", (1,))]),
        (1, 5, [("SC902", (1,)), ("SC904", (1,))]),
        (2, 1, [("SC902", (1,)), ("SC904", (2,))]),
    ],
)
def test_a_wrong_result_hides_no_weight_but_those_that_follow_from_it(
    drifting: int, at: int, codes: list[tuple[str, tuple[int, ...]]]
) -> None:
    assert found(lambda rank: drifts(rank, drifting, at), "threaded", ranks=4) == codes
