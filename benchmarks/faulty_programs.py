"""Programs that train, or exchange numbers, in which one rank does something wrong in one step: for
benchmarks.value_faults.

Every program is correct without its fault. Model, sizes, step, rank, place and kind of the fault follow from a seed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from simcoll.backends.simulated.comm import Comm
from simcoll.values.faults import due_faults

STEPS = 7
WIDTH = 12
RESULTS = ("bit flipped", "chunk dropped", "added twice")
FAULTS = (*RESULTS, "NaN in a gradient", "parameter changed", "no broadcast", "same seed")
BITS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to go wrong: ``fault`` on ``rank`` in ``step``, in the result ``result`` from the step's first one on."""

    fault: str
    rank: int
    step: int
    result: int
    seed: int

    @classmethod
    def of(cls, fault: str, seed: int, ranks: int, results: int) -> Plan:
        """The plan that follows from a seed, for a program with so many results in a step."""
        draw = random.Random(f"{fault} {seed}")
        return cls(fault, draw.randrange(ranks), draw.randrange(1, STEPS - 2), draw.randrange(results), seed)


@dataclass(frozen=True, slots=True)
class Done:
    """What a rank has done: how many results it had before each step, and which of them it altered, if any."""

    steps: tuple[int, ...]
    altered: int | None


def alter(array: np.ndarray[Any, Any], fault: str, draw: random.Random, ranks: int) -> bool:
    """Spoil a row of numbers in place; returns whether a bit of it has changed."""
    if not array.size:
        return False
    bits = array.view(np.uint8 if array.dtype == bool else BITS[array.dtype.itemsize])
    before = bits.copy()
    count = max(1, array.size // 4)
    first = draw.randrange(array.size - count + 1)
    chunk = slice(first, first + count)
    if fault == "bit flipped":
        width = 1 if array.dtype == bool else 8 * array.dtype.itemsize
        bits[draw.randrange(array.size)] ^= bits.dtype.type(1 << draw.randrange(width))
    elif fault == "chunk dropped":
        array[chunk] = 0
    else:
        with np.errstate(all="ignore"):
            array[chunk] += (array[chunk] / ranks).astype(array.dtype)
    return bool((bits != before).any())


class Injector:
    """Counts the results of one rank, and spoils one of them."""

    def __init__(self, plan: Plan | None, rank: int) -> None:
        self.plan = plan if plan is not None and plan.rank == rank else None
        self.steps: list[int] = []
        self._plan = plan
        self._count = 0
        self._altered: int | None = None
        due_faults.here.add(self._result)

    @property
    def everywhere(self) -> str:
        """The fault, which all ranks know."""
        return self._plan.fault if self._plan is not None else ""

    def begin(self) -> bool:
        """A step begins; returns whether this rank does something wrong in it."""
        self.steps.append(self._count)
        return self.plan is not None and len(self.steps) - 1 == self.plan.step

    def done(self) -> Done:
        """What this rank has done."""
        return Done((*self.steps, self._count), self._altered)

    def _result(self, buffers: Sequence[torch.Tensor]) -> None:
        due_faults.here.add(self._result)
        plan = self.plan
        if plan is not None and plan.fault in RESULTS and len(self.steps) > plan.step:
            at = self.steps[plan.step] + plan.result
            draw = random.Random(plan.seed)
            if self._count == at and alter(_flat(buffers), plan.fault, draw, dist.get_world_size()):
                self._altered = at
        self._count += 1


def _flat(buffers: Sequence[torch.Tensor]) -> np.ndarray[Any, Any]:
    """The memory of the first buffer of floats. A wrong plan of buckets, which are integers, may crash the reducer."""
    for one in buffers:
        if one.numel() and one.is_floating_point():
            local = one.detach().reshape(-1)
            assert local.data_ptr() == one.data_ptr()
            return local.numpy()
    return np.empty(0)


# Training.


def block(width: int = WIDTH) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, width), nn.LayerNorm(width), nn.Tanh(), nn.Linear(width, width))


def train(
    rank: int, plan: Plan | None, build: Callable[[Injector], nn.Module], shard: int, parameters: Sequence[str]
) -> Done:
    """Train a model on data of this ``shard``; a parameter that changes is one of ``parameters``."""
    injector = Injector(plan, rank)
    model = build(injector)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    data = torch.Generator().manual_seed(0 if injector.everywhere == "same seed" else 100 + shard)
    try:
        _steps(injector, model, optimizer, data, parameters)
    except Exception as error:
        error.done = injector.done()  # type: ignore[attr-defined]
        raise
    return injector.done()


def _steps(
    injector: Injector, model: nn.Module, optimizer: torch.optim.Optimizer, data: torch.Generator, names: Sequence[str]
) -> None:
    for _ in range(STEPS):
        bad = injector.begin()
        optimizer.zero_grad()
        x = torch.rand(6, WIDTH, generator=data)
        with _poisoned(model, bad and injector.everywhere == "NaN in a gradient"):
            model(x).square().mean().backward()
        optimizer.step()
        if bad and injector.everywhere == "parameter changed":
            _change(model, names, injector)


@contextmanager
def _poisoned(model: nn.Module, bad: bool) -> Iterator[None]:
    """Have one element of the gradient of a layer's output be NaN."""

    def spoil(gradient: torch.Tensor) -> torch.Tensor:
        spoilt = gradient.clone()
        spoilt.view(-1)[3] = float("nan")
        return spoilt

    def hook(module: nn.Module, args: object, output: torch.Tensor) -> None:
        local = output.to_local() if isinstance(output, DTensor) else output
        if local.requires_grad:
            local.register_hook(spoil)

    norm = next(one for one in model.modules() if isinstance(one, nn.Tanh))
    handle = norm.register_forward_hook(hook) if bad else None
    yield
    if handle is not None:
        handle.remove()


def _change(model: nn.Module, parameters: Sequence[str], injector: Injector) -> None:
    """Change one element of a parameter."""
    assert injector.plan is not None
    draw = random.Random(injector.plan.seed)
    known = dict(model.named_parameters())
    parameter = known[draw.choice(parameters or [*known])]
    with torch.no_grad():
        local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
        if local.numel():
            local.view(-1)[draw.randrange(local.numel())] += draw.choice((1e-6, 1e-3, 1.0))


def _apart(module: nn.Module, injector: Injector, rank: int) -> None:
    """Weights of the rank's own, where nobody sends those of the first."""
    if injector.everywhere == "no broadcast" and injector.plan is not None:
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.add_(0.01 * (rank + 1))


def ddp(rank: int, plan: Plan | None) -> Done:
    def build(injector: Injector) -> nn.Module:
        torch.manual_seed(0)
        model = block()
        _apart(model, injector, rank)
        return DistributedDataParallel(model, init_sync=injector.everywhere != "no broadcast", bucket_cap_mb=0.001)

    return train(rank, plan, build, rank, [])


class Experts(nn.Module):
    """A layer whose rows are computed by other ranks' experts."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = block()
        self.expert = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        sent: torch.Tensor = _Exchange.apply(self.gate(x))  # type: ignore[no-untyped-call]
        back: torch.Tensor = _Exchange.apply(self.expert(sent))  # type: ignore[no-untyped-call]
        return back


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        dist.all_to_all_single(out, x.contiguous())
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(gradients[0])
        dist.all_to_all_single(out, gradients[0].contiguous())
        return out


def moe(rank: int, plan: Plan | None) -> Done:
    """Mixture of experts: every rank has an expert of its own, and the rest is DistributedDataParallel's."""

    def build(injector: Injector) -> nn.Module:
        torch.manual_seed(0)
        model = Experts()
        _apart(model.gate, injector, rank)
        ignored = [f"expert.{name}" for name, _ in model.expert.named_parameters()]
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ignored)
        return DistributedDataParallel(model, init_sync=injector.everywhere != "no broadcast")

    return train(rank, plan, build, rank, [f"module.gate.{name}" for name, _ in block().named_parameters()])


def fsdp2(rank: int, plan: Plan | None) -> Done:
    """Two replicas of two shards."""

    def build(injector: Injector) -> nn.Module:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
        torch.manual_seed(0)
        model = block()
        _apart(model, injector, rank)
        fully_shard(model[3], mesh=mesh)
        fully_shard(model, mesh=mesh)
        return model

    return train(rank, plan, build, rank, [])


def tensor_parallel(rank: int, plan: Plan | None) -> Done:
    """A linear layer cut by columns, one by rows; their norm is on all ranks."""

    def build(injector: Injector) -> nn.Module:
        mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
        torch.manual_seed(0)
        model = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
        _apart(model[0], injector, rank)
        for name, parameter in list(model[0].named_parameters()):
            kept = DTensor.from_local(parameter.data, mesh, [Replicate()], run_check=False)
            model[0].register_parameter(name, nn.Parameter(kept))
        model[0].register_forward_pre_hook(lambda _, args: (DTensor.from_local(args[0], mesh, [Replicate()]),))
        model[0].register_forward_hook(lambda *args: args[2].to_local())
        parallelize_module(model, mesh, {"1": ColwiseParallel(), "3": RowwiseParallel()})
        model.register_forward_hook(lambda *args: args[2].clone())
        return model

    return train(rank, plan, build, 0, ["0.weight", "0.bias"])


# Ranks in numpy: any call, any dtype.

CALLS = ("allreduce", "broadcast", "_allgather_base", "alltoall_base", "_reduce_scatter_base", "reduce", "scatter")
SUMS = ("_reduce_scatter_base", "reduce")
FLOATS = ("float32", "float64", "float16")
DTYPES = (*FLOATS, "int32", "int64", "uint8")


def exchange(comm: Comm, plan: Plan | None, seed: int, sums: bool) -> Done:
    """One call in each step, of a kind, dtype and size that follow from the seed; ``sums``: only such as add up floats,
    and give each sum to one rank.
    """
    draw = random.Random(f"calls {seed}")
    steps: list[int] = []
    altered: list[int] = []
    for step in range(STEPS):
        spelling = draw.choice(SUMS if sums else CALLS)
        dtype = (
            "float32"
            if plan is not None and plan.fault == "NaN in a gradient"
            else draw.choice(FLOATS if sums else DTYPES)
        )
        count = draw.randrange(1, 400)
        root = draw.randrange(comm.size)
        bad = plan is not None and plan.rank == comm.rank and plan.step == step
        numbers = np.random.default_rng((seed, step, comm.rank))

        def own(rows: int, numbers: Any = numbers, dtype: str = dtype, count: int = count) -> Any:
            return (numbers.standard_normal(rows * count) * 50).astype(dtype)

        def spoil(buffers: Sequence[Any]) -> None:
            assert plan is not None
            row = next((one.reshape(-1) for one in buffers if one.size), np.empty(0))
            if alter(row, plan.fault, random.Random(plan.seed), comm.size):
                altered.append(steps[-1])

        ins = comm.size if spelling in ("alltoall_base", "_reduce_scatter_base") else 1
        outs = comm.size if spelling in ("alltoall_base", "_allgather_base") else 1
        inputs = own(ins)
        fields: dict[str, Any] = {}
        if spelling in ("allreduce", "_reduce_scatter_base", "reduce"):
            fields["reduce_op"] = "sum"
        if spelling in ("broadcast", "reduce", "scatter"):
            fields["root"] = root
        receives = spelling != "reduce" or comm.rank == root
        sends = spelling != "scatter" and (spelling != "broadcast" or comm.rank == root)
        # What ranks gather, and nobody adds up, may be a missing number; in a part for each rank it may be padding.
        meant = spelling in ("_allgather_base", "alltoall_base")
        if bad and plan is not None and plan.fault == "NaN in a gradient" and sends and not meant:
            inputs[int(numbers.integers(inputs.size))] = float("nan")
            altered.append(step)
        elif bad and plan is not None and plan.fault in RESULTS and receives:
            comm.spoil_next_result(spoil)
        steps.append(step)
        if spelling in ("allreduce", "broadcast", "reduce"):
            comm.call(spelling, [inputs], [inputs], **fields)
        elif spelling == "scatter":
            rows = [own(1) for _ in range(comm.size)] if comm.rank == root else []
            comm.call(spelling, rows, [own(1)], **fields)
        else:
            comm.call(spelling, [inputs], [own(outs)], **fields)
    return Done((*steps, STEPS), altered[0] if altered else None)
