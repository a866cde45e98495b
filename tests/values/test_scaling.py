"""Programs that scale their losses: infinities while they look for the scale are meant, NaN that stays is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from simcoll.testing import try_ranks


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


@pytest.mark.slow
@pytest.mark.parametrize("steps", [1, 4, 24])
def test_a_job_that_overflows_in_its_first_steps_is_silent_however_short_it_is(steps: int) -> None:
    # About fifteen halvings lead to the scale: the two shorter jobs end before they have found it.
    outcome = try_ranks(2, lambda rank: train(rank, 2.0**127, steps), backend="gloo", values="all")
    assert not outcome.exceptions
    assert not outcome.report.findings


@pytest.mark.slow
@pytest.mark.parametrize(("scale", "first"), [(1024.0, 0), (1024.0, 3), (2.0**127, 24)])
def test_nan_that_stays_is_found_beside_a_scaler(scale: float, first: int) -> None:
    def program(rank: int) -> None:
        train(rank, scale, first + 5, lambda step: rank == 1 and step >= first)

    [finding] = try_ranks(2, program, backend="threaded", values="all").report.findings
    assert (finding.code, finding.culprits) == ("SC901", (1,))


@pytest.mark.parametrize("scales", [True, False])
def test_a_scaler_that_never_looks_explains_nothing(scales: bool) -> None:
    """The optimizer makes every step itself, whether or not the loss is scaled."""

    def program(rank: int) -> None:
        torch.manual_seed(0)
        model = DistributedDataParallel(nn.Linear(16, 4))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        for step in range(6):
            batch = torch.full((8, 16), INFINITE if (rank, step) == (1, 2) else rank + 1.0)
            loss = model(batch).square().sum()
            optimizer.zero_grad()
            (scaler.scale(loss) if scales else loss).backward()
            optimizer.step()

    [finding] = try_ranks(2, program, backend="threaded", values="all").report.findings
    assert (finding.code, finding.culprits) == ("SC901", (1,))


def test_a_job_may_end_in_the_first_round_of_its_scaler() -> None:
    def program(rank: int) -> None:
        torch.manual_seed(0)
        model = DistributedDataParallel(nn.Linear(16, 4))
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        for _ in range(3):
            batch = torch.full((8, 16), INFINITE if rank == 1 else rank + 1.0)
            scaler.scale(model(batch).square().sum()).backward()
        # There is no memory for the step.

    assert not try_ranks(2, program, backend="threaded", values="all").report.findings


def test_what_a_step_has_used_is_found_after_a_scaler_was_in_use() -> None:
    def program(rank: int) -> None:
        torch.manual_seed(0)
        model = DistributedDataParallel(nn.Linear(16, 4))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        for step in range(8):
            batch = torch.full((8, 16), INFINITE if (rank, step) == (1, 5) else rank + 1.0)
            loss = model(batch).square().sum()
            optimizer.zero_grad()
            if step < 3:
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
            else:
                loss.backward()
                optimizer.step()

    [finding] = try_ranks(2, program, backend="threaded", values="all").report.findings
    assert (finding.code, finding.culprits) == ("SC901", (1,))


class OwnScaler(torch.amp.GradScaler):
    """A scaler with an update of its own, like that of FSDP, which does not call torch's."""

    def update(self, new_scale: Any = None) -> None:
        if any(
            bool(found)
            for states in self._per_optimizer_states.values()
            for found in states["found_inf_per_device"].values()
        ):
            assert self._scale is not None
            self._scale = self._scale * 0.5
        self._per_optimizer_states.clear()


class NestedScaler(torch.amp.GradScaler):
    """A scaler whose update calls torch's."""

    def update(self, new_scale: Any = None) -> None:
        super().update(new_scale)


class Layers:
    """Equal layers, whose gradients a rank reduces one by one at one line, in steps that end with a scaler's update."""

    def __init__(self, layers: int, steps: int, sent: Callable[[int, int, int], float], kind: Any = None) -> None:
        self.layers, self.steps, self.sent = layers, steps, sent
        self.kind = kind or torch.amp.GradScaler

    def __call__(self, rank: int) -> None:
        scaler = self.kind("cpu", init_scale=2.0**100)
        weights = [nn.Parameter(torch.zeros(3)) for _ in range(self.layers)]
        optimizer = torch.optim.SGD(weights, lr=0.0)
        scaler.scale(torch.ones(1))
        for step in range(self.steps):
            for layer, weight in enumerate(weights):
                weight.grad = torch.full((3,), self.sent(rank, step, layer))
                dist.all_reduce(weight.grad)
            scaler.step(optimizer)
            scaler.update()

    def findings(self) -> list[tuple[str, tuple[int, ...]]]:
        outcome = try_ranks(2, self, backend="threaded", values="all")
        assert not outcome.exceptions
        return [(one.code, one.culprits) for one in outcome.report.findings]


INFINITE = float("inf")


@pytest.mark.slow
@pytest.mark.parametrize("kind", [torch.amp.GradScaler, OwnScaler, NestedScaler])
def test_equal_layers_that_overflow_at_one_line_are_one_round(kind: Any) -> None:
    def at_the_end(rank: int, step: int, layer: int) -> float:
        return INFINITE if step >= 2 and rank == 1 else 1.0

    def everywhere(rank: int, step: int, layer: int) -> float:
        return -INFINITE if rank and layer % 2 else INFINITE

    def first(rank: int, step: int, layer: int) -> float:
        # The layers' gradients differ in size, and so do the ranks': rank 0 finds its scale first.
        return INFINITE if layer < 12 - 4 * step and (rank or step < 3) else 1.0 + rank

    assert Layers(3, 4, at_the_end, kind).findings() == []
    assert Layers(12, 4, everywhere, kind).findings() == []
    assert Layers(12, 3, first, kind).findings() == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", [torch.amp.GradScaler, OwnScaler])
def test_a_layer_that_stays_infinite_among_others_that_are_finite_is_found(kind: Any) -> None:
    # The finite calls of the same line do not end the search: the layer's own never do.
    stays = Layers(3, 4, lambda rank, step, layer: INFINITE if rank and not layer else 1.0, kind)
    assert stays.findings() == [("SC901", (1,))]
