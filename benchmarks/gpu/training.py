"""Checks of `gpu_check`: training as users do it (DDP, FSDP2, torch.compile), against the same step on the host."""

from __future__ import annotations

import copy

import torch
import torch.distributed as dist
from torch import nn

from benchmarks.gpu.check import Place, SkippedCheck, check
from benchmarks.gpu.collectives import everybody, own
from benchmarks.gpu.machine import DOUBLE

SECTION = "training"
STEPS = 3


def model() -> nn.Module:
    """A small model, the same on each rank."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))


def batch(rank: int, step: int) -> torch.Tensor:
    """What a rank trains on in a step, made on the host."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(8, 16, generator=generator)


def on_the_host(ranks: int) -> nn.Module:
    """The model after the steps, trained on the batches of all ranks at once."""
    whole = model()
    optimiser = torch.optim.SGD(whole.parameters(), lr=0.1)
    for step in range(STEPS):
        optimiser.zero_grad()
        whole(torch.cat([batch(rank, step) for rank in range(ranks)])).square().mean().backward()
        optimiser.step()
    return whole


def train(place: Place, trained: nn.Module) -> None:
    """As many steps on this rank's batches."""
    optimiser = torch.optim.SGD(trained.parameters(), lr=0.1)
    for step in range(STEPS):
        optimiser.zero_grad()
        trained(place.tensor(batch(place.rank, step))).square().mean().backward()
        optimiser.step()
    place.settle()


def same_parameters(place: Place, found: nn.Module, full: bool = False) -> None:
    """Compare a trained model with the host's; ``full`` gathers parameters that are sharded."""
    for (name, mine), wanted in zip(found.named_parameters(), on_the_host(place.size).parameters(), strict=True):
        place.same(mine.full_tensor() if full else mine, wanted.detach(), name)  # type: ignore[attr-defined]


@check(SECTION, "DistributedDataParallel")
def data_parallel(place: Place) -> None:
    """Gradients are averaged, in buckets, while the backward pass goes on."""
    trained = nn.parallel.DistributedDataParallel(copy.deepcopy(model()).to(place.device), bucket_cap_mb=1)
    train(place, trained)
    same_parameters(place, trained.module)


@check(SECTION, "FSDP2: fully_shard", kernels=True)
def fully_sharded(place: Place) -> None:
    """Parameters are gathered layer by layer, gradients scattered."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    if place.backend == "gloo" and place.cuda:
        raise SkippedCheck("FSDP2's own copies on CUDA need collectives that Gloo has for the CPU only")
    mesh = init_device_mesh(place.device.type, (place.size,))
    trained = model().to(place.device)
    for layer in (trained[0], trained[2], trained):  # type: ignore[index]
        fully_shard(layer, mesh=mesh)
    train(place, trained)
    same_parameters(place, trained, full=True)


@check(
    SECTION, "torch.compile: a collective in a compiled function", modes=("record", "detail"), alone=True, seconds=120.0
)
def compiled(place: Place) -> None:
    """Through functional collectives, traced once and run three times."""
    from torch.distributed import _functional_collectives as functions

    group = dist.group.WORLD

    def scaled_sum(tensor: torch.Tensor) -> torch.Tensor:
        total: torch.Tensor = functions.all_reduce(tensor * 2, "sum", group)
        return total + 1

    fast = torch.compile(scaled_sum, backend=_compiler(place), fullgraph=True)
    for _ in range(3):
        place.same(fast(place.tensor(own(place.rank))), torch.stack(everybody(place)).sum(0) * 2 + 1)


def _compiler(place: Place) -> str:
    """inductor where it has Triton to write kernels with, and a GPU to run them; else what traces alone."""
    from torch.utils._triton import has_triton

    real = place.cuda and DOUBLE not in torch.cuda.get_device_name(place.device)
    return "inductor" if real and has_triton() else "aot_eager"
