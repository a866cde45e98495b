"""SC906 on real ranks: dropout between tensor-parallel layers, with seeds of any kind."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("torch")
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from simcoll.testing import try_ranks

BACKENDS = [pytest.param("threaded"), pytest.param("gloo", marks=[pytest.mark.slow, pytest.mark.gloo])]

Build = Callable[[], nn.Module]


class Own(nn.Dropout):
    """Dropout that draws from a generator of the rank, and leaves the default one as it was."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002  # torch's name
        with torch.random.fork_rng():
            torch.manual_seed(100 + dist.get_rank())
            return super().forward(input)


def between() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 6), nn.Linear(6, 8), nn.Dropout(0.3), nn.Linear(8, 6), nn.Linear(6, 8))


def inside() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 6), nn.Dropout(0.3), nn.Linear(6, 8), nn.Linear(8, 6), nn.Linear(6, 8))


def inside_of_its_own() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 6), Own(0.3), nn.Linear(6, 8), nn.Linear(8, 6), nn.Linear(6, 8))


def train(rank: int, build: Build, seed: int, *, trains: bool = True) -> None:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    torch.manual_seed(0)
    model = build()
    linear = [name for name, one in model.named_children() if isinstance(one, nn.Linear)]
    styles = [ColwiseParallel(), RowwiseParallel(), ColwiseParallel(), RowwiseParallel()]
    parallelize_module(model, mesh, dict(zip(linear, styles, strict=True)))
    model.train(trains)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    data = torch.Generator().manual_seed(1)
    torch.manual_seed(seed)
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.rand(4, 8, generator=data)).square().mean().backward()
        optimizer.step()


def codes(build: Build, backend: str, *, own: bool, trains: bool = True) -> list[str]:
    def program(rank: int) -> None:
        train(rank, build, rank if own else 7, trains=trains)

    outcome = try_ranks(2, program, backend=backend, values="all")
    assert not outcome.exceptions
    return [one.code for one in outcome.report.findings]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_seed_for_each_rank(backend: str) -> None:
    assert codes(between, backend, own=True) == ["SC906"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_common_seed_and_parts_of_the_ranks_own_are_silent(backend: str) -> None:
    assert codes(between, backend, own=False) == []
    assert codes(inside, backend, own=True) == []
    assert codes(inside_of_its_own, backend, own=False) == []
    assert codes(between, backend, own=True, trains=False) == []
