"""SC904 on real ranks: what replicas have to hold alike is compared, and nothing else."""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, post_localSGD_hook, powerSGD_hook
from torch.distributed.algorithms.join import Join
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from simcoll.testing import try_ranks
from simcoll.values.choice import Choice
from simcoll.verifier.findings.finding import Finding

BACKENDS = [pytest.param("threaded"), pytest.param("gloo", marks=[pytest.mark.slow, pytest.mark.gloo])]
ON_GLOO = [pytest.mark.slow, pytest.mark.gloo]

Change = Callable[[int, int, Any, torch.optim.Optimizer], None]


def findings(program: Callable[[int], object], backend: str, ranks: int = 3, values: str = "all") -> list[Finding]:
    outcome = try_ranks(ranks, program, backend=backend, values=values)
    for error in outcome.exceptions.values():
        raise error
    return [*outcome.report.findings]


def nothing(rank: int, step: int, model: Any, optimizer: torch.optim.Optimizer) -> None:
    """No fault."""


def network(width: int = 8) -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 2))


def train(rank: int, change: Change = nothing, steps: int = 5, **options: Any) -> None:
    torch.manual_seed(rank)
    model = DistributedDataParallel(network(), **options)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(steps):
        optimizer.zero_grad()
        model(torch.rand(4, 6)).square().mean().backward()
        optimizer.step()
        change(rank, step, model, optimizer)


class Dispatched(TorchDispatchMode):
    """Counts what is dispatched."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen[str(function)] += 1
        return function(*args, **(kwargs or {}))


class Called(TorchFunctionMode):
    """Counts the functions of tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen[getattr(function, "__qualname__", str(function))] += 1
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", [Dispatched, Called])
def test_modes_of_the_program_see_no_checks(kind: type[Dispatched] | type[Called]) -> None:
    def program(rank: int) -> dict[str, int]:
        with kind() as mode:
            train(rank)
        return dict(mode.seen)

    checked, unchecked = (try_ranks(3, program, backend="threaded", values=values) for values in ("all", "off"))
    assert checked.results == unchecked.results
    assert all(checked.results.values())


def change_weight(rank: int, step: int, model: Any, optimizer: torch.optim.Optimizer) -> None:
    if rank == 1 and step == 2:
        with torch.no_grad():
            model.module[3].weight[0, 3] += 1e-3


def change_rate(rank: int, step: int, model: Any, optimizer: torch.optim.Optimizer) -> None:
    if rank == 2 and step == 1:
        optimizer.param_groups[0]["lr"] = 0.02


def change_state(rank: int, step: int, model: Any, optimizer: torch.optim.Optimizer) -> None:
    if rank == 0 and step == 0:
        optimizer.state[model.module[0].bias]["exp_avg"][2] = 1.0


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_weight_that_one_rank_changes(backend: str) -> None:
    [finding] = findings(lambda rank: train(rank, change_weight), backend)
    assert (finding.code, finding.culprits, finding.ranks) == ("SC904", (1,), (0, 1, 2))
    assert str(finding.step) == "step 3"
    assert "parameter 3.weight is not equal on ranks 0-2 after step 3; after step 2 all were equal" in finding.message


@pytest.mark.parametrize("at", [0, 1, 3])
def test_a_change_before_a_pass_that_begins_with_no_call_is_told_at_its_step(at: int) -> None:
    """A model without buffers broadcasts nothing: the look after a step and the next one are at the same place."""

    def program(rank: int) -> None:
        torch.manual_seed(rank)
        model = DistributedDataParallel(plain())
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        for step in range(5):
            optimizer.zero_grad()
            model(torch.rand(4, 6)).square().mean().backward()
            optimizer.step()
            if rank == 1 and step == at:
                model.module[0].bias.data[0] += 1e-3

    [finding] = findings(program, "threaded")
    before = f"after step {at}" if at else "before the first step"
    assert finding.culprits == (1,)
    assert f"after step {at + 1}; {before} all were equal" in finding.message


def test_a_learning_rate_that_is_a_tensor_is_told() -> None:
    def program(rank: int) -> None:
        torch.manual_seed(0)
        model = DistributedDataParallel(plain())
        rate = torch.tensor(0.01)
        optimizer = torch.optim.Adam(model.parameters(), lr=rate)
        for step in range(4):
            if rank == 2 and step == 1:
                rate.fill_(0.5)
            optimizer.zero_grad()
            model(torch.rand(4, 6) + rank).square().mean().backward()
            optimizer.step()

    [finding] = findings(program, "threaded")
    assert (finding.code, finding.culprits) == ("SC904", (2,))
    assert "lr is 0.0" in finding.message
    assert "0.5 on rank 2" in finding.message


class Weight(nn.Parameter):
    """A parameter of a class of the program's."""


def test_parameters_of_a_class_of_the_program_are_compared() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = Weight(torch.ones(6, 2))

        def forward(self, x: Any) -> Any:
            return x @ self.weight

    def program(rank: int) -> None:
        model = DistributedDataParallel(Scaled())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for step in range(4):
            optimizer.zero_grad()
            model(torch.rand(4, 6) + rank).square().mean().backward()
            optimizer.step()
            if (rank, step) == (1, 1):
                model.module.weight.data[0, 0] += 1

    [finding] = findings(program, "threaded")
    assert (finding.code, finding.culprits) == ("SC904", (1,))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_learning_rate_that_one_rank_changes_is_told(backend: str) -> None:
    [finding] = findings(lambda rank: train(rank, change_rate), backend)
    assert (finding.code, finding.culprits) == ("SC904", (2,))
    assert "0.weight" in finding.message
    assert "after step 3; after step 2" in finding.message
    assert "lr is 0.01 on ranks 0-1, 0.02 on rank 2" in finding.message


def test_a_state_that_one_rank_changes() -> None:
    [finding] = findings(lambda rank: train(rank, change_state), "threaded")
    assert (finding.code, finding.culprits) == ("SC904", (0,))
    assert "exp_avg of 0.bias is not equal on ranks 0-2 after step 1" in finding.message


@pytest.mark.parametrize("backend", BACKENDS)
def test_ranks_that_begin_with_other_weights(backend: str) -> None:
    [finding] = findings(lambda rank: train(rank, init_sync=False), backend)
    assert (finding.code, finding.culprits) == ("SC904", ())
    assert "before the first step" in finding.message


@pytest.mark.slow
@pytest.mark.parametrize("at", [3, 40, 100])
def test_a_sample_finds_what_stays_different_within_200_steps(at: int) -> None:
    def change(rank: int, step: int, model: Any, optimizer: torch.optim.Optimizer) -> None:
        if step == at:
            change_weight(rank, 2, model, optimizer)

    [finding] = findings(lambda rank: train(rank, change, steps=200), "threaded", values="sample")
    assert (finding.code, finding.culprits) == ("SC904", (1,))


def test_a_sample_finds_the_rank_that_left_out_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """It counts passes as the others do."""
    monkeypatch.setattr(Choice, "takes_step", lambda _, number, steps=1, always=False: always or number % 4 == 0)

    def program(rank: int) -> None:
        model = DistributedDataParallel(plain())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(10):
            model(torch.full((4, 6), float(rank + step))).square().mean().backward()
            if (rank, step) != (1, 2):
                optimizer.step()
            optimizer.zero_grad()

    [finding] = findings(program, "threaded")
    assert (finding.code, finding.culprits) == ("SC904", (1,))


def test_without_values_nothing_is_hooked() -> None:
    def program(rank: int) -> bool:
        train(rank, change_weight)
        return hasattr(DistributedDataParallel._pre_forward, "watches")

    outcome = try_ranks(2, program, backend="threaded", values="off")
    assert outcome.report.findings == ()
    assert not any(outcome.results.values())
    assert not [event for trace in outcome.traces for event in trace.events if event.kind in ("replicas", "state")]


# Programs that keep ranks apart on purpose, or for a while.


def accumulate(rank: int) -> None:
    torch.manual_seed(rank)
    model = DistributedDataParallel(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for part in range(9):
        with contextlib.nullcontext() if part % 3 == 2 else model.no_sync():
            model(torch.rand(4, 6)).square().mean().backward()
        if part % 3 == 2:
            optimizer.step()
            optimizer.zero_grad()


def local_steps(rank: int) -> None:
    """Local SGD: steps without synchronisation, and an average of the parameters now and then."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(9):
        with contextlib.nullcontext() if step % 4 == 3 else model.no_sync():
            model(torch.rand(4, 6)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def post_local(rank: int) -> None:
    torch.manual_seed(rank)
    model = DistributedDataParallel(network())
    state = post_localSGD_hook.PostLocalSGDState(None, dist.new_group([rank]), start_localSGD_iter=2)
    model.register_comm_hook(state, post_localSGD_hook.post_localSGD_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(6):
        optimizer.zero_grad()
        model(torch.rand(4, 6)).square().mean().backward()
        optimizer.step()


def scaled(rank: int) -> None:
    torch.manual_seed(rank)
    model = DistributedDataParallel(network())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**126)
    for _ in range(8):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(torch.rand(4, 6)).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def validated(rank: int) -> None:
    """Weights of rank 0 are averaged for a validation, and given back."""

    def validate(rank: int, step: int, model: Any, optimizer: torch.optim.Optimizer) -> None:
        model.eval()
        kept = {name: value.clone() for name, value in model.module.state_dict().items()}
        if rank == 0:
            with torch.no_grad():
                model.module[0].weight.mul_(0.9)
        with torch.no_grad():
            model.module(torch.rand(4, 6))
        model.module.load_state_dict(kept)
        model.train()

    train(rank, validate)


def uneven(rank: int) -> None:
    torch.manual_seed(rank)
    model = DistributedDataParallel(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        with Join([model]):
            for _ in range(3 + rank):
                optimizer.zero_grad()
                model(torch.rand(4, 6)).square().mean().backward()
                optimizer.step()


def redundant(rank: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit, at its import
        from torch.distributed.optim import ZeroRedundancyOptimizer

    torch.manual_seed(rank)
    model = DistributedDataParallel(network())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.rand(4, 6)).square().mean().backward()
        optimizer.step()


def compressed(rank: int) -> None:
    """One model after the other: callbacks of PowerSGD make calls whenever they run."""
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
    for known, hook in ((None, default_hooks.fp16_compress_hook), (state, powerSGD_hook.powerSGD_hook)):
        torch.manual_seed(rank)
        model = DistributedDataParallel(network())
        model.register_comm_hook(known, hook)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(5):
            optimizer.zero_grad()
            model(torch.rand(4, 6)).square().mean().backward()
            optimizer.step()


def own_weights(rank: int) -> None:
    """Each rank trains a model of its own; one keeps an average."""
    torch.manual_seed(rank)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    average = torch.optim.swa_utils.AveragedModel(model) if rank == 0 else None
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.rand(4, 6)).square().mean().backward()
        optimizer.step()
        if average is not None:
            average.update_parameters(model)
        dist.barrier()


# Programs that alter weights for a pass, or make a pass that others do not make.


def plain() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 2))


def altered(rank: int, alter: Callable[[Any, torch.Tensor], None]) -> None:
    """Weights are altered before a pass, and given back before the step."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(plain())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        kept = [parameter.detach().clone() for parameter in model.parameters()]
        batch = torch.rand(4, 6)
        alter(model, batch)
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        with torch.no_grad():
            for parameter, value in zip(model.parameters(), kept, strict=True):
                parameter.copy_(value)
        optimizer.step()


def ascend(model: Any, batch: torch.Tensor) -> None:
    """Sharpness-aware minimization: the ascent follows the gradients of this rank."""
    with model.no_sync():
        model(batch).square().mean().backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.05 * parameter.grad


def add_noise(model: Any, batch: torch.Tensor) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.01 * torch.randn_like(parameter)


def adapt(model: Any, batch: torch.Tensor) -> None:
    """Meta-learning: steps of this rank on the model itself."""
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        inner.zero_grad()
        model.module(batch).square().mean().backward()
        inner.step()


def logs(rank: int) -> None:
    """One rank runs the model once more between the backward pass and the step."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(plain())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    for _ in range(10):
        optimizer.zero_grad()
        model(torch.rand(4, 6)).square().mean().backward()
        if rank == 0:
            model(torch.rand(4, 6)).sum().item()
        optimizer.step()


def twins(rank: int) -> None:
    """Two models of one form, of which one rank uses the second first."""
    torch.manual_seed(rank)
    models = DistributedDataParallel(plain()), DistributedDataParallel(plain())
    if rank == 0:
        models[1](torch.rand(4, 6))
    optimizer = torch.optim.Adam([one for model in models for one in model.parameters()], lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        sum(model(torch.rand(4, 6)).square().mean() for model in models).backward()
        optimizer.step()


def copied(rank: int, *, at: int = -1) -> list[Any]:
    """One rank keeps a copy of its first model; two models of one form follow, and a copy that all ranks train."""
    torch.manual_seed(rank)
    first = DistributedDataParallel(plain())
    kept = [copy.deepcopy(first)] if rank == 0 else []
    models: list[Any] = [first, DistributedDataParallel(plain()), DistributedDataParallel(plain())]
    models.append(copy.deepcopy(models[-1]))
    optimizer = torch.optim.Adam([one for model in models for one in model.parameters()], lr=0.1)
    for step in range(4):
        optimizer.zero_grad()
        sum(model(torch.rand(4, 6)).square().mean() for model in models).backward()
        optimizer.step()
        if rank == at and step == 1:
            with torch.no_grad():
                models[-1].module[0].bias += 1e-3
    return kept


def own_steps(rank: int, every: int = 1) -> None:
    """The program steps by itself; one rank makes a pass before it does. ``every``: passes that synchronise."""
    torch.manual_seed(rank)
    model: Any = DistributedDataParallel(plain())
    for step in range(8):
        with contextlib.nullcontext() if step % every == every - 1 else model.no_sync():
            model(torch.rand(4, 6)).square().mean().backward()
        if rank == 0 and every == 1:
            model(torch.rand(4, 6)).sum().item()
        for parameter in model.parameters():
            parameter.data -= 0.1 * parameter.grad
            parameter.grad = None


def averaged_in_pairs(rank: int) -> None:
    """The hook's group is not the model's; models are averaged over all ranks now and then."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(plain())
    alone = [dist.new_group([one]) for one in range(dist.get_world_size())]
    model.register_comm_hook(alone[rank], default_hooks.allreduce_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.rand(4, 6)).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("alter", [ascend, add_noise, adapt])
def test_weights_that_are_altered_for_a_pass(alter: Callable[[Any, torch.Tensor], None]) -> None:
    assert findings(lambda rank: altered(rank, alter), "threaded") == []


@pytest.mark.parametrize(
    "program", [logs, twins, copied, own_steps, lambda rank: own_steps(rank, 4), averaged_in_pairs]
)
def test_passes_of_one_rank_and_steps_of_its_own(program: Callable[[int], None]) -> None:
    assert findings(program, "threaded") == []


def test_a_copy_that_all_ranks_train_is_compared() -> None:
    [finding] = findings(lambda rank: copied(rank, at=2), "threaded")
    assert (finding.code, finding.culprits) == ("SC904", (2,))
    assert "parameter 0.bias is not equal on ranks 0-2 after step 2" in finding.message


@pytest.mark.parametrize("backward", [False, True])
def test_a_pass_that_does_not_synchronise_counts_by_its_gradients(backward: bool) -> None:
    """One that gives a figure for the log leaves the ranks alike; local steps do not."""

    def program(rank: int) -> None:
        torch.manual_seed(rank)
        model: Any = DistributedDataParallel(plain())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for step in range(8):
            optimizer.zero_grad()
            model(torch.rand(4, 6)).square().mean().backward()
            for _ in range(2 if step == 0 else 0):
                with model.no_sync():
                    loss = model(torch.rand(4, 6)).mean()
                if backward:
                    loss.backward()
            optimizer.step()
            if rank == 1 and step == 4:
                with torch.no_grad():
                    model.module[0].weight += 1e-3

    assert [one.culprits for one in findings(program, "threaded")] == ([] if backward else [(1,)])


def test_a_state_is_compared_after_steps_of_two_optimizers() -> None:
    def program(rank: int) -> None:
        torch.manual_seed(rank)
        model: Any = DistributedDataParallel(plain())
        optimizers = [torch.optim.Adam(model.module[place].parameters(), lr=0.01) for place in (0, 2)]
        for step in range(3):
            for optimizer in optimizers:
                optimizer.zero_grad()
            model(torch.rand(4, 6)).square().mean().backward()
            for optimizer in optimizers:
                optimizer.step()
            if rank == 1 and step == 0:
                optimizers[0].state[model.module[0].bias]["exp_avg"][2] = 1.0

    [finding] = findings(program, "threaded")
    assert "exp_avg of 0.bias is not equal on ranks 0-2 after step 2" in finding.message


def test_parts_of_one_form_that_are_trained_in_turn_keep_their_names() -> None:
    def program(rank: int) -> None:
        torch.manual_seed(0)
        parts = nn.ModuleDict({name: nn.Linear(6, 6) for name in ("encoder", "decoder")})
        model: Any = DistributedDataParallel(nn.Sequential(*parts.values()), find_unused_parameters=True)
        torch.manual_seed(rank)
        for step in range(6):
            for place, part in enumerate(parts.values()):
                part.requires_grad_(step % 2 == place)
            optimizer = torch.optim.SGD([one for one in model.parameters() if one.requires_grad], lr=0.01)
            model(torch.rand(4, 6)).square().mean().backward()
            optimizer.step()
            if rank == 1 and step == 2:
                with torch.no_grad():
                    model.module[1].weight += 1e-3

    [finding] = findings(program, "threaded")
    assert "parameter 1.weight is not equal" in finding.message


def test_what_stays_different_is_found_however_the_program_steps() -> None:
    def program(rank: int) -> None:
        torch.manual_seed(rank)
        model: Any = DistributedDataParallel(plain())
        for step in range(4):
            model(torch.rand(4, 6)).square().mean().backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= 0.1 * (parameter.grad + (rank == step == 1))
                    parameter.grad = None

    [finding] = findings(program, "threaded")
    assert (finding.code, finding.culprits) == ("SC904", (1,))
    assert "after step 2; after step 1 all were equal" in finding.message


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", [train, accumulate, local_steps, scaled, validated, own_weights])
def test_correct_programs_are_silent(program: Callable[[int], None], backend: str) -> None:
    assert findings(program, backend) == []


@pytest.mark.slow
@pytest.mark.gloo
@pytest.mark.parametrize("program", [post_local, uneven, redundant, compressed])
def test_correct_programs_on_gloo_are_silent(program: Callable[[int], None]) -> None:
    assert findings(program, "gloo") == []


# DTensors: replicas of shards, and layers that tensor parallelism keeps whole.


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.up = nn.Linear(8, 16)
        self.down = nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.down(self.up(self.norm(x)).relu())
        return out.clone()


def whole(module: nn.Module, mesh: Any) -> None:
    """Keep a module's parameters on each rank of a mesh."""
    for name, parameter in list(module.named_parameters(recurse=False)):
        replicated = DTensor.from_local(parameter.data, mesh, [Replicate()], run_check=False)
        module.register_parameter(name, nn.Parameter(replicated))
    module.register_forward_pre_hook(lambda _, args: (DTensor.from_local(args[0], mesh, [Replicate()]),))
    module.register_forward_hook(lambda *args: args[2].to_local())


def steps_of(model: nn.Module, change: Callable[[int], None], seed: int) -> None:
    torch.manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(4):
        optimizer.zero_grad()
        model(torch.rand(4, 8)).square().mean().backward()
        optimizer.step()
        change(step)


def add_to(parameter: Any) -> None:
    with torch.no_grad():
        parameter.to_local().view(-1)[0] += 1e-3


def sharded_replicas(rank: int, *, seed: int = 0, at: int = -1, accumulates: bool = False) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    torch.manual_seed(seed)
    model: Any = nn.Sequential(Block(), Block())
    fully_shard(model[1], mesh=mesh)
    fully_shard(model, mesh=mesh)
    if accumulates:
        model.set_requires_all_reduce(False)

    def change(step: int) -> None:
        if rank == at and step == 1:
            add_to(model[1].up.weight)

    steps_of(model, change, rank)


@pytest.mark.slow
@pytest.mark.gloo
def test_replicas_of_shards() -> None:
    assert findings(sharded_replicas, "gloo", 4) == []
    assert findings(lambda rank: sharded_replicas(rank, accumulates=True), "gloo", 4) == []
    [finding] = findings(lambda rank: sharded_replicas(rank, at=3), "gloo", 4)
    assert (finding.code, finding.culprits, finding.ranks) == ("SC904", (), (1, 3))
    assert "parameter 1.up.weight is" in finding.message
    assert "after step 3; after step 2" in finding.message
    [finding] = findings(lambda rank: sharded_replicas(rank, seed=rank // 2), "gloo", 4)
    assert (finding.code, finding.ranks) == ("SC904", (0, 1, 2, 3))
    assert "before the first step" in finding.message


def tensor_parallel(rank: int, *, at: int = -1) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    torch.manual_seed(0)
    model = Block()
    holder = nn.ModuleDict({"model": model}) if rank == 3 else None  # such as a logger's
    whole(model.norm, mesh["tp"])
    parallelize_module(model, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    fully_shard(model, mesh=mesh["dp"])

    def change(step: int) -> None:
        if rank == at and step == 1:
            add_to(model.norm.weight)

    steps_of(model, change, rank // 2)
    del holder


@pytest.mark.slow
@pytest.mark.gloo
def test_layers_that_tensor_parallelism_keeps_whole() -> None:
    assert findings(tensor_parallel, "gloo", 4) == []
    [finding] = findings(lambda rank: tensor_parallel(rank, at=2), "gloo", 4)
    assert (finding.code, finding.ranks) == ("SC904", (2, 3))
    assert "norm.weight" in finding.message
    assert "after step 3; after step 2" in finding.message


def in_any_order(rank: int) -> None:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    models = [nn.Linear(8, 2), nn.Linear(8, 2)]
    for model in models:
        whole(model, mesh)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    for step in range(3):
        for place in (0, 1) if rank else (1, 0):
            optimizers[place].zero_grad()
            models[place](torch.full((4, 8), float(step))).square().mean().backward()
            optimizers[place].step()


@pytest.mark.slow
@pytest.mark.gloo
def test_optimizers_that_ranks_use_in_another_order() -> None:
    assert findings(in_any_order, "gloo", 2) == []


def compiled(rank: int) -> None:
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.compile(network(), backend="eager"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = torch.compile(optimizer.step, backend="eager")
    whole_model = torch.compile(model, backend="eager")
    for _ in range(3):
        optimizer.zero_grad()
        whole_model(torch.rand(4, 6)).square().mean().backward()
        step()


@pytest.mark.slow
@pytest.mark.gloo
@pytest.mark.filterwarnings("ignore")
def test_compiled_models_and_steps_go_on() -> None:
    assert findings(compiled, "gloo", 2) == []
