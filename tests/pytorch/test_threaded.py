# ruff: noqa: PT009  # the base classes are unittest's
"""PyTorch's own tests with threads for ranks: test_multi_threaded_pg unedited, and tests on DTensor's base class.

Nothing of PyTorch's text is here. ``test_multi_threaded_pg`` comes from the folder that ``SIMCOLL_PYTORCH_TESTS``
names, the harness and the base class from the installed torch.
"""

from __future__ import annotations

import importlib.util
import os
import threading
import unittest
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

pytest.importorskip("torch.testing._internal.common_distributed", reason="PyTorch's test modules need expecttest")

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.common_distributed import MultiThreadedTestCase, spawn_threads_and_init_comms
from torch.testing._internal.distributed._tensor.common_dtensor import DTensorOpTestBase

from simcoll.backends.threaded.process_group import ThreadedProcessGroup, create_process_group
from simcoll.errors import CollectiveMismatchError

# The harness warns of what it does itself.
pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.slow]

TESTS_VARIABLE = "SIMCOLL_PYTORCH_TESTS"
SKIPPED = {"test_bwd_sees_fwd_pg"}
"""Tests that need a GPU."""


@pytest.fixture(autouse=True)
def simcoll_as_threaded() -> Iterator[None]:
    """Put simcoll's creator in the place of that of PyTorch's threaded group."""
    plugins = dist.Backend._plugins
    before = plugins["THREADED"]
    plugins["THREADED"] = dist.Backend._BackendPlugin(create_process_group, False)
    threads = threading.active_count()
    yield
    plugins["THREADED"] = before
    assert threading.active_count() == threads, "a thread was left behind"


class Result(unittest.TestResult):
    """Counts what passed."""

    def __init__(self) -> None:
        super().__init__()
        self.passed: set[str] = set()

    def addSuccess(self, test: unittest.TestCase) -> None:
        self.passed.add(test.id().split(".")[-1])


def test_multi_threaded_pg_passes_unedited() -> None:
    folder = os.environ.get(TESTS_VARIABLE)
    if not folder:
        pytest.skip(f"{TESTS_VARIABLE} names no folder with PyTorch's test files (.ci/extract_pytorch_tests.py)")
    path = Path(folder) / "test_multi_threaded_pg.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    result = Result()
    unittest.defaultTestLoader.loadTestsFromModule(module).run(result)
    assert not result.errors, result.errors
    assert not result.failures, result.failures
    skipped = {test.id().split(".")[-1] for test, _ in result.skipped}
    assert skipped <= SKIPPED
    assert len(result.passed) >= 19


class TestDTensor(DTensorOpTestBase):
    """DTensor on PyTorch's threaded base class."""

    @property
    def world_size(self) -> int:
        return 4

    def mesh(self) -> Any:
        return self.build_device_mesh()

    def test_group_is_simcolls(self) -> None:
        assert isinstance(dist.group.WORLD, ThreadedProcessGroup)

    def test_redistribute_in_every_way(self) -> None:
        mesh = self.mesh()
        whole = torch.arange(40.0).reshape(10, 4)
        placements = [Replicate(), Shard(0), Shard(1)]
        for one in placements:
            for other in placements:
                moved = distribute_tensor(whole, mesh, [one]).redistribute(mesh, [other])
                self.assertEqual(moved.full_tensor(), whole)

    def test_partial_sums(self) -> None:
        mesh = self.mesh()
        partial = DTensor.from_local(torch.full((6, 2), self.rank + 1.0), mesh, [Partial()])
        self.assertEqual(partial.redistribute(mesh, [Shard(0)]).full_tensor(), torch.full((6, 2), 10.0))
        self.assertEqual(partial.full_tensor(), torch.full((6, 2), 10.0))

    def test_matrix_product(self) -> None:
        mesh = self.mesh()
        left, right = torch.arange(12.0).reshape(4, 3), torch.arange(15.0).reshape(3, 5)
        product = distribute_tensor(left, mesh, [Shard(0)]) @ distribute_tensor(right, mesh, [Shard(1)])
        self.assertEqual(product.full_tensor(), left @ right)

    def test_gradients(self) -> None:
        mesh = self.mesh()
        torch.manual_seed(0)
        weight = distribute_tensor(torch.ones(8, 8), mesh, [Shard(0)]).requires_grad_()
        (weight * 2).sum().backward()
        assert weight.grad is not None
        self.assertEqual(weight.grad.full_tensor(), torch.full((8, 8), 2.0))

    def test_module_in_tensor_parallel(self) -> None:
        mesh = self.mesh()
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 8))
        for parameter in model.parameters():
            torch.nn.init.constant_(parameter, 0.5)
        batch = torch.ones(2, 8)
        expected = model(batch)
        parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
        self.assertEqual(model(batch), expected)

    def test_module_replicated(self) -> None:
        model = distribute_module(torch.nn.Linear(4, 4), self.mesh())
        self.assertIsInstance(model.weight, DTensor)


class TestTraining(MultiThreadedTestCase):
    """DistributedDataParallel, FSDP2 and the rest of c10d on PyTorch's threaded base class."""

    @property
    def world_size(self) -> int:
        return 2

    def setUp(self) -> None:
        super().setUp()
        self._spawn_threads()

    def test_ddp(self) -> None:
        model = torch.nn.Linear(3, 2)
        torch.nn.init.constant_(model.weight, float(self.rank))
        parallel = DistributedDataParallel(model)
        self.assertEqual(model.weight, torch.zeros(2, 3))
        parallel(torch.full((1, 3), float(self.rank))).sum().backward()
        self.assertEqual(model.weight.grad, torch.full((2, 3), 0.5))

    def test_fsdp2(self) -> None:
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
        for parameter in model.parameters():
            torch.nn.init.constant_(parameter, 0.25)
        fully_shard(model)
        model(torch.ones(2, 4)).sum().backward()
        self.assertEqual(cast(Any, model)[1].bias.grad.full_tensor(), torch.full((4,), 2.0))

    def test_messages(self) -> None:
        value = torch.full((3,), float(self.rank))
        if self.rank == 0:
            dist.send(value + 5, 1, tag=3)
            requests = dist.batch_isend_irecv([dist.P2POp(dist.irecv, value, 1)])
        else:
            self.assertEqual(dist.recv(value, tag=3), 0)
            requests = dist.batch_isend_irecv([dist.P2POp(dist.isend, value, 0)])
        for request in requests:
            request.wait()
        self.assertEqual(value, torch.full((3,), 5.0))


@pytest.mark.parametrize("size", [2, 4])
def test_mismatch_is_raised_on_every_rank(size: int) -> None:
    raised = []

    @spawn_threads_and_init_comms(world_size=size)
    def disagree(self: object) -> None:
        with pytest.raises(CollectiveMismatchError, match="SC102"):
            dist.all_reduce(torch.ones(2 if dist.get_rank() == 1 else 3))
        raised.append(dist.get_rank())

    disagree(None)
    assert sorted(raised) == list(range(size))


def test_failing_rank_ends_others_that_already_wait_with_its_exception_as_cause() -> None:
    causes = []

    @spawn_threads_and_init_comms(world_size=3)
    def fail(self: object) -> None:
        if dist.get_rank() == 1:
            raise ZeroDivisionError("planted")
        try:
            dist.all_reduce(torch.ones(1))
        except RuntimeError as error:
            causes.append(type(error.__cause__))
            raise

    with pytest.raises(RuntimeError, match="planted"):
        fail(None)
    assert causes == [ZeroDivisionError] * 2


def test_rank_that_has_gone_is_not_waited_for() -> None:
    @spawn_threads_and_init_comms(world_size=2)
    def leave(self: object) -> None:
        if dist.get_rank() == 0:
            dist.barrier()

    with pytest.raises(RuntimeError, match="never come"):
        leave(None)
