"""The name of the tensor that brings the first NaN: the parameter in a bucket, or which of several tensors."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

pytest.importorskip("torch")
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from simcoll.testing import try_ranks

BACKENDS = [pytest.param("threaded"), pytest.param("gloo", marks=[pytest.mark.slow, pytest.mark.gloo])]


def message(program: Any, backend: str) -> str:
    outcome = try_ranks(2, program, backend=backend, values="all")
    assert not outcome.exceptions
    [finding] = outcome.report.findings
    assert (finding.code, finding.culprits) == ("SC901", (1,))
    return finding.message


def train(
    rank: int, broken: str, step_of_it: int, sizes: tuple[int, ...] = (5, 9, 7, 3), megabytes: float = 2e-4
) -> None:
    torch.manual_seed(0)
    layers = [nn.Linear(one, other) for one, other in itertools.pairwise(sizes)]
    model = DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=megabytes)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = torch.Generator().manual_seed(rank)
    for step in range(6):
        optimizer.zero_grad()
        if rank == 1 and step == step_of_it:
            hook = dict(model.module.named_parameters())[broken].register_hook(lambda grad: grad * float("nan"))
        model(torch.rand(4, sizes[0], generator=data)).square().mean().backward()
        if rank == 1 and step == step_of_it:
            hook.remove()
        optimizer.step()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("broken", "step"), [("1.weight", 0), ("1.weight", 3), ("0.bias", 4), ("2.bias", 2)])
def test_the_parameter_whose_gradient_it_is(broken: str, step: int, backend: str) -> None:
    said = message(lambda rank: train(rank, broken, step), backend)
    assert f"into all_reduce, the first in the gradient of {broken}: no collective before" in said


def test_one_bucket_that_is_laid_out_anew() -> None:
    """The first layout is in the order of the parameters, the second in that of their gradients."""
    for step in (0, 3):
        said = message(lambda rank, step=step: train(rank, "0.weight", step, (5, 9, 3), 1.0), "threaded")
        assert "the first in the gradient of 0.weight" in said


@pytest.mark.slow
@pytest.mark.gloo
def test_a_parameter_of_fully_shard() -> None:
    def program(rank: int) -> None:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 3))
        for part in (model[0], model):
            fully_shard(part, mesh=init_device_mesh("cpu", (2,)))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        data = torch.Generator().manual_seed(rank)
        for step in range(3):
            optimizer.zero_grad()
            out = model(torch.rand(4, 6, generator=data))
            if rank == 1 and step == 1:
                out = out * float("nan")
            out.square().mean().backward()
            optimizer.step()

    assert "the first in the gradient of 1." in message(program, "gloo")


def test_weights_are_no_gradients() -> None:
    """The model is sent to all ranks in one tensor, of the size of its only bucket."""

    def program(rank: int) -> None:
        torch.manual_seed(0)
        model = nn.Linear(5, 3)
        if rank == 0:
            nn.init.constant_(model.bias, float("nan"))
        DistributedDataParallel(model)

    outcome = try_ranks(2, program, backend="threaded", values="all")
    [finding] = outcome.report.findings
    assert "put 3 NaN elements into broadcast: no collective before" in finding.message


def test_a_name_that_is_not_known_is_not_guessed() -> None:
    """All buckets have the same size, before and after they are laid out anew."""
    said = message(lambda rank: train(rank, "1.weight", 3, (6, 6, 6, 6)), "threaded")
    assert "gradient of" not in said or "gradient of 1.weight" in said


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_of_several_tensors(backend: str) -> None:
    def program(rank: int) -> None:
        parts = [torch.ones(3), torch.ones(3)]
        parts[1][2] = float("nan") if rank == 1 else 1.0
        dist.all_to_all([torch.empty(3), torch.empty(3)], parts)

    assert "the first in tensor 2 of 2" in message(program, backend)


def test_an_element_of_one_tensor() -> None:
    def program(rank: int) -> None:
        x = torch.ones(9)
        x[5] = float("inf") if rank == 1 else 1.0
        dist.all_reduce(x)

    assert "put 1 infinite element into all_reduce: no collective" in message(program, "threaded")
