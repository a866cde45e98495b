"""SC901 and NaNs that stand for missing numbers: programs that only send them to each other are silent, and those whose
weights, activations or gradients they are in are not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest

pytest.importorskip("torch")
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from simcoll.testing import try_ranks
from simcoll.values.choice import Choice
from simcoll.verifier.findings.finding import Finding
from simcoll.wrapper import discards

# torch renames functions, and its own packages use what it calls deprecated.
pytestmark = [pytest.mark.filterwarnings(f"ignore::{one}") for one in ("FutureWarning", "DeprecationWarning")]

RANKS = 3
NAN, INFINITE = float("nan"), float("inf")


def found(program: Callable[[int], object], backend: str = "threaded") -> list[Finding]:
    outcome = try_ranks(RANKS, program, backend=backend, values="all")
    for error in outcome.exceptions.values():
        raise error
    return list(outcome.report.findings)


def gathered(mine: Any) -> Any:
    rows = [torch.empty_like(mine) for _ in range(RANKS)]
    dist.all_gather(rows, mine)
    return torch.stack(rows)


def of_rank_one(rank: int, size: int = 1) -> Any:
    """A row of numbers, of which rank 1 has no last one."""
    row = torch.arange(size, dtype=torch.float32) + rank
    row[-1] = NAN if rank == 1 else 1.0
    return row


class Net(nn.Module):
    def __init__(self, buffers: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(6, 9), nn.Linear(9, 1)
        self.norm = nn.BatchNorm1d(9) if buffers else nn.Identity()

    def forward(self, x: Any) -> Any:
        return self.last(torch.relu(self.norm(self.first(x))))


def steps(rank: int, model: Any, count: int = 3, optimizer: Any = None, bad: int = -1) -> None:
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(count):
        x = torch.randn(4, 6, generator=torch.Generator().manual_seed(step * RANKS + rank))
        loss = model(x).square().mean() * (NAN if step == bad and rank == 2 else 1.0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def has_finite_gradients(model: Any) -> bool:
    return all(bool(weight.grad.isfinite().all()) for weight in model.parameters())


def metric_at_the_end(rank: int) -> None:
    steps(rank, DistributedDataParallel(Net()))
    gathered(of_rank_one(rank))


def only_evaluation(rank: int) -> None:
    for _ in range(3):
        gathered(of_rank_one(rank, 20))


def metric_for_the_first_rank(rank: int) -> None:
    mine = of_rank_one(rank)
    dist.gather(mine, [torch.empty_like(mine) for _ in range(RANKS)] if rank == 0 else None)


def padded_predictions(rank: int) -> None:
    mine = torch.full((8,), NAN)
    mine[: 8 - rank] = 1.0
    dist.all_gather_into_tensor(torch.empty(8 * RANKS), mine)


def metric_by_a_functional_collective(rank: int) -> None:
    functional.all_gather_tensor(of_rank_one(rank), 0, dist.group.WORLD).sum().item()


class Metric(nn.Module):
    def forward(self, mine: Any) -> Any:
        return gathered(mine).nanmean()


def metric_that_is_a_module(rank: int) -> None:
    Metric()(of_rank_one(rank))


def sanity_check_before_training(rank: int) -> None:
    model = DistributedDataParallel(Net())
    gathered(of_rank_one(rank))
    steps(rank, model)


def overflow_right_after_a_sanity_check(rank: int) -> None:
    model = DistributedDataParallel(Net())
    gathered(of_rank_one(rank))
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.01), torch.amp.GradScaler("cpu", init_scale=1.0)
    for step in range(5):
        loss = model(torch.ones(4, 6) * (rank + step)).square().mean() * (NAN if step == 0 else 1.0)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def best_loss_so_far(rank: int) -> None:
    model = DistributedDataParallel(Net())
    best = torch.tensor([NAN])
    dist.broadcast(best, 0)
    steps(rank, model)


def labels_of_the_first_rank(rank: int) -> None:
    """A batch of all ranks, in which some labels are missing, comes from the first one."""
    for step in range(3):
        labels = torch.full((16,), float(step))
        labels[3] = NAN
        dist.broadcast(labels, 0)
        loss = (labels - rank).square().nanmean()
        dist.all_reduce(loss)


def scattered_features(rank: int) -> None:
    for _ in range(3):
        mine = torch.empty(12)
        dist.scatter(mine, [torch.tensor([1.0, NAN] * 6) for _ in range(RANKS)] if rank == 0 else None)
        dist.all_reduce(mine.nan_to_num())


def shuffled_features(rank: int) -> None:
    for _ in range(3):
        mine = torch.empty(12)
        dist.all_to_all_single(mine, torch.tensor([float(rank), NAN, 2.0, 3.0] * 3))
        dist.all_reduce(mine.nan_to_num())


def mask_of_the_first_rank(rank: int) -> None:
    """One rank adds the mask to its part of the logits."""
    model = DistributedDataParallel(Net())
    for _ in range(2):
        logits = torch.ones(6, 6) * rank
        if rank == 0:
            logits += torch.triu(torch.full((6, 6), -INFINITE), 1)
        dist.all_reduce(logits)
        steps(rank, model)


def masks_of_several_lengths(rank: int) -> None:
    for _ in range(2):
        logits = torch.ones(6, 6)
        logits[:, 6 - rank :] = -INFINITE
        dist.all_reduce(logits)
        dist.all_reduce(logits.softmax(-1))


def scale_of_its_own(rank: int) -> None:
    """The program scales its losses, and finds the scale, without a scaler of torch's."""
    model = DistributedDataParallel(Net())
    optimizer, scale = torch.optim.SGD(model.parameters(), lr=0.01), 2.0**127
    for step in range(8):
        optimizer.zero_grad()
        (model(torch.ones(4, 6) * (rank + step + 1)).square().sum() * 1e3 * scale).backward()
        gradients: list[Any] = [weight.grad for weight in model.parameters()]
        if all(bool(gradient.isfinite().all()) for gradient in gradients):
            for gradient in gradients:
                gradient /= scale
            optimizer.step()
        else:
            scale /= 2.0**16


def masks_as_long_as_the_batch(rank: int) -> None:
    for length in (4, 5, 6):
        bias = torch.zeros(length)
        bias[3:] = -INFINITE if rank == 0 else 0.0
        dist.all_reduce(bias)
        dist.all_reduce(bias.softmax(-1))


def looking_at_gradients(rank: int, bad: Callable[[int], bool], alone: bool = False) -> None:
    """A program that leaves out a step with gradients that are not finite: all ranks do, or one ``alone``."""
    model = DistributedDataParallel(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(8):
        loss = model(torch.ones(4, 6) * (rank + step)).square().mean() * (NAN if rank == 1 and bad(step) else 1.0)
        optimizer.zero_grad()
        loss.backward()
        if torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).isfinite() or (alone and rank != 1):
            optimizer.step()


def steps_left_out(rank: int) -> None:
    looking_at_gradients(rank, lambda step: step in (2, 3, 5))


def gradients_set_to_none(
    rank: int, bad: Callable[[int], bool] = lambda step: step in (2, 5), alone: bool = False, zero: bool = False
) -> None:
    """A program that clears gradients by itself, and leaves out a step: all ranks do, or one ``alone``."""
    model = DistributedDataParallel(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(8):
        for parameter in model.parameters():
            if zero and parameter.grad is not None:
                parameter.grad.zero_()
            else:
                parameter.grad = None
        x = torch.ones(4, 6) * (rank + step)
        (model(x).square().mean() * (NAN if rank == 1 and bad(step) else 1.0)).backward()
        whole = all(bool(one.grad.isfinite().all()) for one in model.parameters() if one.grad is not None)
        if whole or (alone and rank != 1):
            optimizer.step()


def gradients_set_to_zero(rank: int) -> None:
    gradients_set_to_none(rank, zero=True)


def batches_left_out(rank: int) -> None:
    """All ranks leave a batch out, before the backward pass."""
    model = DistributedDataParallel(Net())
    for step in range(5):
        model.zero_grad()
        loss = model(torch.ones(4, 6) * (NAN if rank == 2 and step == 2 else rank)).square().mean()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if mean.isfinite():
            loss.backward()
            torch.optim.SGD(model.parameters(), lr=0.01).step()


def first_steps_left_out(rank: int) -> None:
    """The optimizer has not made a step yet."""
    looking_at_gradients(rank, lambda step: step < 2)


def steps_of_the_first_rank(rank: int) -> None:
    """One rank has the optimizer, and sends the weights to the others; all leave a step out."""
    model = DistributedDataParallel(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01) if rank == 0 else None
    for step in range(5):
        model.zero_grad()
        (model(torch.ones(4, 6) * (rank + step)).square().mean() * (NAN if rank == 1 and step == 4 else 1.0)).backward()
        if all(bool(one.grad.isfinite().all()) for one in model.parameters() if one.grad is not None):
            if optimizer is not None:
                optimizer.step()
            for weight in model.parameters():
                dist.broadcast(weight.data, 0)
    model.zero_grad()


def own_steps_left_out(rank: int) -> None:
    """What was finite later was not used, however the program makes its steps."""
    model = DistributedDataParallel(Net())
    for step in range(6):
        model.zero_grad()
        (model(torch.ones(4, 6) * (rank + step)).square().mean() * (NAN if rank == 1 and step == 3 else 1.0)).backward()
        gradients: list[Any] = [parameter.grad for parameter in model.parameters()]
        if all(bool(gradient.isfinite().all()) for gradient in gradients):
            with torch.no_grad():
                for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                    parameter.sub_(gradient, alpha=0.01)


def clearing_the_inner_module(rank: int) -> None:
    """As a hook of a model does after the backward pass: the step that follows has no gradients, or zeros."""
    for to_none in (True, False):
        model = DistributedDataParallel(Net())
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for step in range(6):
            optimizer.zero_grad()
            loss = model(torch.ones(4, 6) * (rank + step)).square().mean() * (NAN if rank == 1 and step == 3 else 1.0)
            loss.backward()
            if not has_finite_gradients(model):
                model.module.zero_grad(set_to_none=to_none)
            optimizer.step()


def clearing_an_outer_module(rank: int) -> None:
    """It has cleared nothing since the last step, but the step has no gradients."""
    model = DistributedDataParallel(Net())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(6):
        optimizer.zero_grad()
        loss = model(torch.ones(4, 6) * (rank + step)).square().mean() * (NAN if rank == 1 and step == 3 else 1.0)
        loss.backward()
        if not has_finite_gradients(model):
            nn.ModuleList([model]).zero_grad()
        optimizer.step()


class Careful(torch.optim.Adam):
    """Makes no step on gradients that are not finite."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        gradients = [one.grad for group in self.param_groups for one in group["params"]]
        if all(bool(gradient.isfinite().all()) for gradient in gradients):
            super().step(closure)


def an_optimizer_that_leaves_out_steps(rank: int) -> None:
    model = DistributedDataParallel(Net())
    optimizer = Careful(model.parameters(), lr=0.01)
    for step in range(6):
        steps(rank, model, 1, optimizer, bad=0 if step == 3 else -1)


def a_loss_that_all_ranks_look_at(rank: int, answer: bool = True) -> None:
    """No wrapper, and nothing is cleared: the batch is left out, or all ranks say so and take it nevertheless."""
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(6):
        loss = model(torch.ones(4, 6) * (rank + step)).square().mean() * (NAN if rank == 1 and step == 3 else 1.0)
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if not mean.isfinite():
            if answer:
                continue
            dist.all_reduce(torch.ones(1))
        loss.backward()
        for weight in model.parameters():
            dist.all_reduce(weight.grad)
        optimizer.step()
        optimizer.zero_grad()


def a_perplexity_that_overflows(rank: int) -> None:
    model = DistributedDataParallel(Net())
    for step in range(3):
        steps(rank, model, 1)
        dist.all_reduce(torch.tensor([90.0 if rank == 1 and step == 1 else 2.0, 1.0]).exp())


def gradients_that_are_mended(rank: int, ranks: Sequence[int] = range(RANKS), bad: Sequence[int] = (3,)) -> None:
    """After the backward pass each of these ranks replaces NaN in its gradients, and makes the step."""
    model = DistributedDataParallel(Net())
    optimizers = [torch.optim.Adam(one.parameters(), lr=0.01) for one in (model.module.first, model.module.last)]
    for step in range(6):
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss = model(torch.ones(4, 6) * (rank + step)).square().mean() * (NAN if rank == 1 and step in bad else 1.0)
        loss.backward()
        for part, optimizer in zip((model.module.first, model.module.last), optimizers, strict=True):
            for weight in part.parameters() if rank in ranks else ():
                torch.nan_to_num(weight.grad, nan=0.0, out=weight.grad)
            optimizer.step()


def gradients_of_a_sharded_model_that_are_mended(rank: int) -> None:
    model = Net()
    fully_shard(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(5):
        optimizer.zero_grad()
        (model(torch.ones(4, 6) * (rank + step)).square().mean() * (NAN if rank == 1 and step == 2 else 1.0)).backward()
        for weight in model.parameters():
            gradient: Any = weight.grad
            gradient.to_local().nan_to_num_()
        optimizer.step()


def gradients_that_are_mended_at_the_end(rank: int) -> None:
    gradients_that_are_mended(rank, bad=(4, 5))


def masks_before_gradients_that_are_mended(rank: int) -> None:
    """Weights are looked at a limited number of times, and only after gradients that were not finite."""
    for _ in range(300):
        dist.all_reduce(torch.full((9,), -INFINITE))
    gradients_that_are_mended(rank)


def own_steps_beside_an_optimizer(rank: int) -> None:
    """The weights of a model that the program steps itself take NaN in; those of the optimizer do not."""
    model: Any = DistributedDataParallel(Net())
    other = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(other.parameters(), lr=0.01)
    for step in range(5):
        model(torch.ones(4, 6) * (rank + step) * (NAN if step == 2 else 1.0)).square().mean().backward()
        with torch.no_grad():
            for weight in model.parameters():
                weight -= 0.01 * weight.grad
                weight.grad = None
        optimizer.zero_grad()
        other(torch.ones(1, 2)).sum().backward()
        optimizer.step()


def padding_that_is_sent_once(rank: int) -> None:
    """Each rank reads what the others have filled, and no more of it."""
    sent = torch.full((RANKS, 8), NAN if rank == 1 else 0.0)
    sent[:, : 2 + rank] = 1.0
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent)
    dist.all_reduce(torch.stack([received[one, : 2 + one].sum() for one in range(RANKS)]))


def padding_of_what_is_gathered_then(rank: int) -> None:
    received = torch.empty(4)
    rows = [torch.tensor([1.0, 2.0, 3.0, NAN]) for _ in range(RANKS)]
    dist.scatter(received, rows if rank == 0 else None)
    gathered(received[:3])


def an_average_that_begins_with_nothing(rank: int) -> None:
    """It is NaN until something was counted, and so is what follows from it."""
    for step in range(4):
        average = torch.zeros(1) / step * rank if step else torch.full((1,), NAN)
        dist.all_reduce(average)
        dist.all_reduce(average * torch.ones(3))


class Scaled(nn.Module):
    """Scales its inputs by a buffer that has no value until the first batch has come."""

    scale: Any

    def __init__(self) -> None:
        super().__init__()
        self.net = Net(buffers=True)
        self.register_buffer("scale", torch.full((9,), NAN))

    def forward(self, x: Any) -> Any:
        with torch.no_grad():
            new = x.abs().mean().expand(9)
            self.scale = torch.where(self.scale.isnan(), new, 0.9 * self.scale + 0.1 * new)
        return self.net(x / self.scale[0])


def a_buffer_that_the_first_batch_sets(rank: int) -> None:
    steps(rank, DistributedDataParallel(Net(buffers=True)))
    steps(rank, DistributedDataParallel(Scaled()))


def a_buffer_that_nobody_has_set(rank: int) -> None:
    model = Net(buffers=True)
    model.register_buffer("scale", torch.full((9,), NAN))
    steps(rank, DistributedDataParallel(model))


def a_table_with_holes(rank: int) -> None:
    """The first rank has read it, and every rank fills its holes before it trains."""
    table = torch.empty(12, 6)
    if rank == 0:
        table = torch.arange(72.0).remainder(7).reshape(12, 6)
        table[[2, 7], [1, 4]] = NAN
    dist.broadcast(table, 0)
    model = DistributedDataParallel(Net())
    for row in table.nan_to_num():
        model(row.expand(2, 6)).square().mean().backward()


CORRECT = [
    a_table_with_holes,
    a_buffer_that_the_first_batch_sets,
    a_buffer_that_nobody_has_set,
    masks_before_gradients_that_are_mended,
    metric_at_the_end,
    only_evaluation,
    metric_for_the_first_rank,
    padded_predictions,
    metric_by_a_functional_collective,
    metric_that_is_a_module,
    sanity_check_before_training,
    overflow_right_after_a_sanity_check,
    best_loss_so_far,
    labels_of_the_first_rank,
    scattered_features,
    shuffled_features,
    mask_of_the_first_rank,
    masks_of_several_lengths,
    scale_of_its_own,
    masks_as_long_as_the_batch,
    steps_left_out,
    gradients_set_to_none,
    gradients_set_to_zero,
    batches_left_out,
    first_steps_left_out,
    steps_of_the_first_rank,
    own_steps_left_out,
    clearing_the_inner_module,
    clearing_an_outer_module,
    an_optimizer_that_leaves_out_steps,
    a_loss_that_all_ranks_look_at,
    a_perplexity_that_overflows,
    gradients_that_are_mended,
    gradients_of_a_sharded_model_that_are_mended,
    gradients_that_are_mended_at_the_end,
    padding_that_is_sent_once,
    padding_of_what_is_gathered_then,
    an_average_that_begins_with_nothing,
]


@pytest.mark.parametrize("program", CORRECT)
def test_missing_numbers_are_meant(program: Callable[[int], object]) -> None:
    assert found(program) == []


def test_passes_of_one_step_use_up_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that takes two batches a step, and sends its buffers in between, throws nothing away: what is left out
    much later is known.
    """
    monkeypatch.setattr(discards, "_MOST", 2)

    def program(rank: int) -> None:
        model = DistributedDataParallel(Net(buffers=True))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for step in range(10):
            optimizer.zero_grad()
            real, made = (model(torch.randn(4, 6) * (rank + 1)).mean() for _ in range(2))
            ((real - made) * (NAN if rank == 1 and step == 7 else 1.0)).backward()
            if has_finite_gradients(model):
                optimizer.step()

    assert found(program) == []


def buffers_of_a_model(rank: int) -> None:
    """Statistics are no part of the gradients, and only the evaluation uses them."""
    model = DistributedDataParallel(Net(buffers=True))
    steps(rank, model)
    if rank == 0:
        model.module.norm.running_var[2] = NAN
    steps(rank, model)


def buffers_before_the_first_pass(rank: int) -> None:
    model = DistributedDataParallel(Net(buffers=True))
    if rank == 0:
        model.module.norm.running_var[2] = NAN
    steps(rank, model)


def buffers_that_the_model_uses(rank: int) -> None:
    model = Net(buffers=True)
    nn.init.constant_(model.norm.running_var, NAN)
    model.norm.eval()
    steps(rank, DistributedDataParallel(model))


def weights_of_a_sharded_model(rank: int) -> None:
    model = Net()
    fully_shard(model)
    with torch.no_grad():
        for weight in model.parameters():
            if rank == 1:
                weight.to_local().fill_(NAN)
        model(torch.ones(4, 6))


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, mine: Any) -> Any:
        return gathered(mine).sum(0)

    @staticmethod
    def backward(context: Any, gradient: Any) -> Any:
        return gradient


def activations(rank: int) -> None:
    weight = nn.Parameter(torch.ones(6) * (NAN if rank == 1 else 1.0))
    _Gather.apply(weight * 2).sum().backward()
    dist.all_reduce(weight.grad)
    dist.all_reduce(torch.ones(2))
    dist.all_reduce(weight.sum().detach())


def metric_of_two_epochs(rank: int) -> None:
    """Nobody looks at it: the next call is the next epoch's."""
    model = DistributedDataParallel(Net())
    for epoch in range(2):
        steps(rank, model)
        dist.all_reduce(torch.full((1,), NAN if rank == 1 and epoch == 0 else 1.0))


def metric_that_is_added_up(rank: int) -> None:
    mean = gathered(of_rank_one(rank)).mean()
    dist.all_reduce(mean)


def averaged(weight: Any) -> None:
    weight.grad.copy_(gathered(weight.grad).mean(0))


def gradients_in_a_backward_pass(rank: int) -> None:
    """Ranks exchange gradients, and reduce nothing."""
    model = Net()
    for weight in model.parameters():
        weight.register_post_accumulate_grad_hook(averaged)
    model(torch.ones(4, 6) * (NAN if rank == 1 else 1.0)).sum().backward()


def tokens_of_experts(rank: int) -> None:
    mine = torch.empty(6, 4)
    dist.all_to_all_single(mine, torch.full((6, 4), NAN if rank == 1 else 1.0))


def weights_of_an_optimizer(rank: int) -> None:
    """The optimizer sends the weights that a rank has updated to the others; the job ends."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = DistributedDataParallel(Net())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=NAN if rank == 1 else 0.01)
    steps(rank, model, 1, optimizer)


def weights_that_are_sent_once(rank: int) -> None:
    model = Net()
    if rank == 0:
        nn.init.constant_(model.first.weight, NAN)
    for weight in model.parameters():
        dist.broadcast(weight.data, 0)
    gathered(model(torch.ones(2, 6)).detach().isfinite().float())


def shards_after_a_step(rank: int) -> None:
    """The program shards its weights by itself: a shard without numbers soon is in the gradients."""
    shard = torch.ones(8) * (rank + 1)
    for step in range(3):
        whole = gathered(shard).reshape(-1)
        mine = torch.empty(8)
        dist.reduce_scatter_tensor(mine, whole * (rank + 1))
        shard -= 0.01 * mine * (NAN if step == 0 and rank == 1 else 1.0)


def logits_of_a_parallel_layer(rank: int) -> None:
    mesh = init_device_mesh("cpu", (RANKS,))
    layer: Any = parallelize_module(nn.Linear(6, 3 * RANKS), mesh, ColwiseParallel(output_layouts=Replicate()))
    with torch.no_grad():
        if rank == 1:
            layer.weight.to_local().fill_(NAN)
        layer(torch.ones(2, 6))


def infinite_activations(rank: int) -> None:
    """They are there from the first call on, as those of a mask are, but the loss has NaN."""
    model = DistributedDataParallel(Net())
    for _ in range(2):
        hidden = torch.full((4, 6), INFINITE if rank == 1 else 1.0)
        dist.all_reduce(hidden)
        model(hidden).sum().backward()


def infinite_once(rank: int) -> None:
    """A function that saturates hides it."""
    for step in range(3):
        hidden = torch.full((4,), INFINITE if rank == 1 and step == 1 else 1.0)
        dist.all_reduce(hidden)
        dist.all_reduce(hidden.tanh())


def no_other_gradients_any_more(rank: int) -> None:
    """All steps are left out from then on, and the job gets nowhere."""
    looking_at_gradients(rank, lambda step: step >= 4)


def a_step_left_out_by_one_rank(rank: int) -> None:
    looking_at_gradients(rank, lambda step: step == 4, alone=True)


def no_other_gradients_but_none(rank: int) -> None:
    gradients_set_to_none(rank, lambda step: step >= 4)


def a_step_on_gradients_of_nan(rank: int) -> None:
    gradients_set_to_none(rank, lambda step: step == 4, alone=True)


def own_steps_at_the_end(rank: int) -> None:
    """Without an optimizer nothing tells whether the last gradients were used."""
    model = DistributedDataParallel(Net())
    for step in range(5):
        for parameter in model.parameters():
            parameter.grad = None
        (model(torch.ones(4, 6)).square().mean() * (NAN if rank == 1 and step == 4 else 1.0)).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.sub_(parameter.grad, alpha=0.01)


def own_steps_that_clear_at_the_end(rank: int) -> None:
    model = DistributedDataParallel(Net())
    for step in range(5):
        model.zero_grad()
        (model(torch.ones(4, 6)).square().mean() * (NAN if rank == 1 and step == 4 else 1.0)).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.sub_(parameter.grad, alpha=0.01)
    model.zero_grad()


def after_a_metric_that_all_ranks_lack(rank: int) -> None:
    """The metric has no value before the first step; a gradient has none from the fifth one on."""
    model = DistributedDataParallel(Net())
    for step in range(4):
        metric = torch.ones(1) * (step or NAN)
        dist.all_reduce(metric)
        steps(rank + 1, model, 1, bad=0 if step == 3 else -1)
        steps(rank + 1, model, 1)


def in_a_metric_that_all_ranks_lack(rank: int) -> None:
    """A gradient has no value from the first step on, before the metric has its first one."""
    model = DistributedDataParallel(Net())
    for step in range(5):
        metric = torch.ones(1) * (step or NAN)
        dist.all_reduce(metric)
        steps(rank + 1, model, 1, bad=0 if step == 0 else -1)


def metric_between_two_clearings(rank: int, by_model: bool = False) -> None:
    """Gradients are cleared at the end of a step, and again before the next: none were thrown away in between."""
    model = DistributedDataParallel(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    holder = model if by_model else optimizer
    for step in range(6):
        holder.zero_grad()
        model(torch.ones(4, 6) * (rank + step)).square().mean().backward()
        optimizer.step()
        holder.zero_grad()
        with torch.no_grad():
            metric = model.module(torch.ones(4, 6)).mean() * (NAN if rank == 1 and step == 2 else 1.0)
            dist.all_reduce(metric)


def metric_between_two_clearings_of_the_model(rank: int) -> None:
    metric_between_two_clearings(rank, by_model=True)


def metric_of_a_pass_without_gradients(rank: int) -> None:
    """An evaluation that forgets no_grad loses its metric."""
    model = DistributedDataParallel(Net())
    steps(rank, model, 2)
    model.zero_grad()
    model.eval()
    for batch in range(4):
        metric = model(torch.ones(4, 6)).detach().mean() * (NAN if rank == 1 and batch == 1 else 1.0)
        dist.all_reduce(metric)


def a_loss_that_all_ranks_look_at_and_use(rank: int) -> None:
    a_loss_that_all_ranks_look_at(rank, answer=False)


def a_perplexity_that_is_used(rank: int) -> None:
    model = DistributedDataParallel(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    perplexity = torch.ones(1)
    for step in range(3):
        optimizer.zero_grad()
        (model(torch.ones(4, 6) * (rank + step)) / perplexity * perplexity).mean().backward()
        optimizer.step()
        perplexity = torch.tensor([90.0 if rank == 1 and step == 1 else 2.0]).exp()
        dist.all_reduce(perplexity)


def a_row_that_no_batch_has_again(rank: int) -> None:
    """All gradients are finite afterwards, but the weights are not."""
    model = DistributedDataParallel(nn.Embedding(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(5):
        optimizer.zero_grad()
        rows = model(torch.tensor([rank + step, 7 if step == 2 else 6]))
        (rows * torch.tensor([[1.0], [NAN if rank == 1 and step == 2 else 1.0]])).sum().backward()
        optimizer.step()


def a_table_that_once_has_holes(rank: int) -> None:
    """Other calls of the line show that the table has all numbers."""
    model = DistributedDataParallel(Net())
    for step in range(3):
        table = torch.ones(12, 6)
        if step == 1 and rank == 0:
            table[2, 1] = NAN
        dist.broadcast(table, 0)
        steps(rank, model, 1)


def a_table_that_nobody_trains_on(rank: int) -> None:
    table = torch.full((12, 6), NAN if rank == 0 else 1.0)
    dist.broadcast(table, 0)
    dist.all_reduce(torch.ones(4))


def a_table_whose_holes_show_later(rank: int) -> None:
    table = torch.full((12, 6), NAN if rank == 0 else 1.0)
    dist.broadcast(table, 0)
    model = DistributedDataParallel(Net())
    steps(rank, model)
    loss = model(table).mean().detach()
    dist.all_reduce(loss)
    steps(rank, model)


FAULTY = [
    (a_table_that_once_has_holes, ("broadcast",), (0,)),
    (a_table_that_nobody_trains_on, ("broadcast",), (0,)),
    (a_table_whose_holes_show_later, ("broadcast",), (0,)),
    (a_row_that_no_batch_has_again, ("all_reduce",), (1,)),
    (a_loss_that_all_ranks_look_at_and_use, ("all_reduce",), (1,)),
    (a_perplexity_that_is_used, ("all_reduce",), (1,)),
    (buffers_of_a_model, (), (0,)),
    (buffers_before_the_first_pass, (), (0,)),
    (buffers_that_the_model_uses, (), (0,)),
    (weights_of_a_sharded_model, (), (1,)),
    (activations, ("all_gather",), (1,)),
    (own_steps_beside_an_optimizer, ("all_reduce",), ()),
    (metric_of_two_epochs, ("all_reduce",), (1,)),
    (metric_that_is_added_up, ("all_gather",), (1,)),
    (gradients_in_a_backward_pass, ("all_gather",), (1,)),
    (tokens_of_experts, (), (1,)),
    (weights_of_an_optimizer, ("broadcast",), (1,)),
    (weights_that_are_sent_once, ("broadcast",), (0,)),
    (shards_after_a_step, ("all_gather",), (1,)),
    (logits_of_a_parallel_layer, (), (1,)),
    (infinite_activations, ("all_reduce",), (1,)),
    (infinite_once, ("all_reduce",), (1,)),
    (no_other_gradients_any_more, ("all_reduce",), (1,)),
    (a_step_left_out_by_one_rank, ("all_reduce",), (1,)),
    (no_other_gradients_but_none, ("all_reduce",), (1,)),
    (a_step_on_gradients_of_nan, ("all_reduce",), (1,)),
    (own_steps_at_the_end, ("all_reduce",), (1,)),
    (metric_of_a_pass_without_gradients, ("all_reduce",), (1,)),
    (own_steps_that_clear_at_the_end, ("all_reduce",), (1,)),
    (after_a_metric_that_all_ranks_lack, ("all_reduce",), (1,)),
    (in_a_metric_that_all_ranks_lack, ("all_reduce",), ()),
    (metric_between_two_clearings, ("all_reduce",), (1,)),
    (metric_between_two_clearings_of_the_model, ("all_reduce",), (1,)),
]


@pytest.mark.parametrize("ranks", [(1,), (0, 2)])
def test_what_some_ranks_do_not_mend_is_found(ranks: Sequence[int]) -> None:
    """Their weights have NaN from then on, and are no longer those of the others."""
    codes = [one.code for one in found(lambda rank: gradients_that_are_mended(rank, ranks))]
    assert "SC901" in codes


@pytest.mark.parametrize(("program", "calls", "culprits"), FAULTY)
def test_numbers_that_are_lost_are_found(
    program: Callable[[int], object], calls: tuple[str, ...], culprits: tuple[int, ...]
) -> None:
    [finding] = found(program)
    assert (finding.code, finding.culprits) == ("SC901", culprits)
    assert not calls or {side.call.op for side in finding.sides if side.call} == {*calls}


def test_a_fault_after_missing_numbers_is_named_itself() -> None:
    """Neither does a metric excuse it, nor is the metric taken for its cause: gradients were finite in between."""

    def program(rank: int) -> None:
        model = DistributedDataParallel(Net())
        for _ in range(2):
            gathered(of_rank_one(rank))
            steps(rank, model)
        gathered(of_rank_one(rank))
        steps(rank, model, bad=1)

    [finding] = found(program)
    assert (finding.code, finding.culprits) == ("SC901", (2,))
    assert "all_reduce" in finding.message


@pytest.mark.parametrize(("receives", "reduces", "culprits"), [(1, False, ()), (0, False, (1,)), (1, True, (1,))])
def test_who_may_have_it_from_a_message_is_not_named(receives: int, reduces: bool, culprits: tuple[int, ...]) -> None:
    """Rank 1 may have its NaN from another stage of a pipeline, unless its reductions after the message are finite."""

    def program(rank: int) -> None:
        if rank == 0:
            dist.send(torch.full((3,), NAN), 1 if receives else 2)
        elif rank == (1 if receives else 2):
            dist.recv(torch.empty(3), 0)
        if reduces:
            dist.all_reduce(torch.ones(3))
        dist.all_reduce(torch.full((3,), NAN if rank == 1 else 1.0))

    [finding] = found(program)
    assert (finding.code, finding.culprits) == ("SC901", culprits)
    assert finding.message.startswith("rank 1 put 3 NaN elements into all_reduce")


@pytest.mark.parametrize(("sender", "culprits"), [(NAN, ()), (1.0, (1,))])
def test_who_has_finite_messages_is_named(sender: float, culprits: tuple[int, ...]) -> None:
    """Rank 0, which sent rank 1 a message, sums up its own gradients right after: they show whether it had the NaN."""

    def program(rank: int) -> None:
        group = dist.new_group([1, 2])
        if rank == 0:
            dist.send(torch.ones(3) * sender, 1)
        elif rank == 1:
            dist.recv(torch.empty(3), 0)
        if rank:
            dist.all_reduce(torch.full((3,), NAN if rank == 1 else 1.0), group=group)
        dist.barrier()
        dist.all_reduce(torch.full((2,), sender if rank == 0 else 1.0))

    [finding] = found(program)
    assert (finding.code, finding.culprits) == ("SC901", culprits)


def a_mask(rank: int) -> None:
    dist.all_reduce(torch.full((4,), -INFINITE if rank == 0 else 1.0))


def an_infinity_that_spreads(rank: int) -> None:
    weight = torch.full((4,), INFINITE if rank == 0 else 1.0)
    dist.all_reduce(weight)
    dist.all_reduce(weight - weight)


def numbers_of_two_ranks(rank: int) -> None:
    dist.all_reduce(torch.full((4,), NAN if rank else 1.0))


def holes(rank: int, spread: bool = False) -> None:
    """Nobody knows of a sum that comes later."""
    rows = torch.empty(12)
    dist.scatter(rows, [torch.full((12,), NAN)] * RANKS if rank == 0 else None)
    if spread:
        dist.all_reduce(rows)


@pytest.mark.parametrize(
    ("program", "culprits"),
    [
        (a_mask, []),
        (an_infinity_that_spreads, [(0,)]),
        (numbers_of_two_ranks, [()]),
        (holes, []),
        (partial(holes, spread=True), [(0,)]),
        (weights_of_an_optimizer, [(1,)]),
    ],
)
def test_in_a_sample(
    program: Callable[[int], object], culprits: Sequence[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a sample nobody knows what came before, or comes then: of several ranks none is named, and infinities, and
    NaNs that are only moved, have to spread.
    """
    monkeypatch.setattr(Choice, "leaves_out", lambda *_: True)
    assert [one.culprits for one in found(program)] == culprits


@pytest.mark.slow
@pytest.mark.gloo
@pytest.mark.parametrize("at", range(5))
def test_on_real_ranks(at: int) -> None:
    assert found(CORRECT[at], "gloo") == []
    [finding] = found(FAULTY[at][0], "gloo")
    assert (finding.code, finding.culprits) == ("SC901", FAULTY[at][2])
