"""Programs that scale their losses: infinities while they look for the scale are meant, NaN that stays is not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("torch")
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from simcoll.testing import try_ranks

pytestmark = pytest.mark.slow


def train(rank: int, scale: float, steps: int, has_nan: Callable[[int], bool] = lambda step: False) -> None:
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    batches = torch.Generator().manual_seed(rank)
    for step in range(steps):
        batch = torch.rand(8, 16, generator=batches)
        if has_nan(step):
            batch[0, 0] = float("nan")
        optimizer.zero_grad()
        scaler.scale(model(batch).square().sum() * 1e3).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()


@pytest.mark.parametrize("steps", [1, 4, 24])
def test_a_job_that_overflows_in_its_first_steps_is_silent_however_short_it_is(steps: int) -> None:
    # About fifteen halvings lead to the scale: the two shorter jobs end before they have found it.
    outcome = try_ranks(2, lambda rank: train(rank, 2.0**127, steps), backend="gloo", values="all")
    assert not outcome.exceptions
    assert not outcome.report.findings


@pytest.mark.parametrize(("scale", "first"), [(1024.0, 0), (1024.0, 3), (2.0**127, 24)])
def test_nan_that_stays_is_found_beside_a_scaler(scale: float, first: int) -> None:
    def program(rank: int) -> None:
        train(rank, scale, first + 5, lambda step: rank == 1 and step >= first)

    [finding] = try_ranks(2, program, backend="threaded", values="all").report.findings
    assert (finding.code, finding.culprits) == ("SC901", (1,))
