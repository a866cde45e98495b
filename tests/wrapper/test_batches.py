"""SC905 on real ranks: data-parallel ranks that train on the same batches, and those that may."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

pytest.importorskip("torch")
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from simcoll.testing import try_ranks
from simcoll.verifier.findings.finding import Finding, Severity

BACKENDS = [pytest.param("threaded"), pytest.param("gloo", marks=[pytest.mark.slow, pytest.mark.gloo])]

Batch = Callable[[int, int], Any]


def findings(program: Callable[[int], object], backend: str, ranks: int = 2, values: str = "all") -> list[Finding]:
    outcome = try_ranks(ranks, program, backend=backend, values=values)
    for error in outcome.exceptions.values():
        raise error
    return [*outcome.report.findings]


def seeded(seed: int) -> torch.Tensor:
    return torch.rand(4, 6, generator=torch.Generator().manual_seed(seed))


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))


def train(rank: int, batch: Batch, model: Callable[[], nn.Module] | None = None, steps: int = 6) -> None:
    wrapped = DistributedDataParallel(network()) if model is None else model()
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    for step in range(steps):
        optimizer.zero_grad()
        wrapped(batch(rank, step)).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_seed_per_job(backend: str) -> None:
    [finding] = findings(lambda rank: train(rank, lambda _, step: seeded(step)), backend, 3)
    assert (finding.code, finding.culprits, finding.ranks) == ("SC905", (), (0, 1, 2))
    assert finding.severity is Severity.WARNING
    assert finding.message == (
        "ranks 0-2 give the model the same batch, a new one in each step, from step 1 on: "
        "in 6 of 6 steps that were looked at"
    )


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("sampled", [True, False])
def test_a_sampler_that_is_missing(backend: str, sampled: bool) -> None:
    def program(rank: int) -> None:
        data = TensorDataset(torch.arange(240.0).reshape(40, 6))
        sampler: DistributedSampler[Any] | None = DistributedSampler(data) if sampled else None
        model = DistributedDataParallel(network())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for (x,) in DataLoader(data, batch_size=4, sampler=sampler):
            model(x / 240).sum().backward()
            optimizer.step()

    assert [one.code for one in findings(program, backend)] == ([] if sampled else ["SC905"])


def test_some_ranks_only() -> None:
    [finding] = findings(lambda rank: train(rank, lambda _, step: seeded(10 * min(rank, 1) + step)), "threaded", 4)
    assert finding.culprits == (1, 2, 3)
    assert finding.message.startswith("ranks 1-3 give the model the same batch")


class Many(nn.Module):
    """A model that takes a list."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 2)

    def forward(self, rows: Any) -> Any:
        return torch.stack([self.layer(row).sum() for row in rows])


@pytest.mark.parametrize("same", [True, False])
def test_batches_of_many_tensors(same: bool) -> None:
    def batch(rank: int, step: int) -> Any:
        return [seeded(100 * step + one + (0 if same else 50 * rank)) for one in range(40)]

    def program(rank: int) -> None:
        train(rank, batch, lambda: DistributedDataParallel(Many()))

    assert [one.code for one in findings(program, "threaded")] == (["SC905"] if same else [])


def test_a_sample_of_the_passes() -> None:
    [finding] = findings(lambda rank: train(rank, lambda _, step: seeded(step), steps=40), "threaded", 2, "sample")
    assert finding.code == "SC905"


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "batch",
    [
        lambda rank, step: seeded(0),
        lambda rank, step: seeded(step % 2),
        lambda rank, step: seeded(100 * rank + step),
        lambda rank, step: seeded(step if step % 3 else 100 * rank + step),
        lambda rank, step: torch.full((4, 6), float(step)),
    ],
    ids=["fixed", "two in turn", "own", "now and then", "a number of the step"],
)
def test_other_batches_are_silent(batch: Batch, backend: str) -> None:
    assert findings(lambda rank: train(rank, batch), backend) == []


class Generator(nn.Module):
    """Makes samples from labels and random numbers."""

    def __init__(self, noise: bool) -> None:
        super().__init__()
        self.noise = noise
        self.classes, self.layers = nn.Embedding(10, 6), network()

    def forward(self, labels: torch.Tensor) -> torch.Tensor:
        noise = torch.randn(len(labels), 6) if self.noise else torch.zeros(6)
        made: torch.Tensor = self.layers(self.classes(labels) + noise)
        return made


@pytest.mark.parametrize(("noise", "seeds", "silent"), [(True, 7, True), (True, 0, False), (False, 7, False)])
def test_labels_of_a_generator_may_be_shared(noise: bool, seeds: int, silent: bool) -> None:
    def program(rank: int) -> None:
        def made() -> nn.Module:
            torch.manual_seed(0)
            generator = DistributedDataParallel(Generator(noise))
            torch.manual_seed(seeds * rank)
            return generator

        train(rank, lambda rank, step: torch.arange(16).add(step).remainder(10), made)

    assert [one.code for one in findings(program, "threaded")] == ([] if silent else ["SC905"])


def validate(rank: int) -> None:
    model = DistributedDataParallel(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(9):
        model.eval() if step % 2 else model.train()
        with torch.no_grad() if not step % 2 else torch.enable_grad():
            model(seeded(step))
        optimizer.step()
        dist.barrier()


def no_step(rank: int) -> None:
    model = DistributedDataParallel(network())
    for step in range(9):
        model(seeded(step)).sum().backward()


def steps_and_masks(rank: int) -> None:
    """The data differ; the positions, which change as well, are the same everywhere."""

    class Masked(nn.Linear):
        def forward(self, x: torch.Tensor, *, more: dict[str, torch.Tensor]) -> torch.Tensor:  # type: ignore[override]
            return super().forward(x) + more["positions"].sum()

    model = DistributedDataParallel(Masked(6, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(6):
        positions = torch.arange(step, step + 16)
        model(seeded(100 * rank + step), more={"positions": positions}).sum().backward()
        optimizer.step()


def test_validation_and_positions_are_silent() -> None:
    assert findings(validate, "threaded") == []
    assert findings(no_step, "threaded") == []
    assert findings(steps_and_masks, "threaded") == []


# Programs in which a part of what enters the model is the same everywhere.


class Divided(nn.Module):
    """Takes this rank's rows of a batch, or of a sequence, of which it then gathers all parts."""

    def __init__(self, rank: int, gathers: bool, dropout: float) -> None:
        super().__init__()
        self.rank, self.gathers = rank, gathers
        self.layer = nn.Linear(6, 8)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mine: torch.Tensor = self.dropout(self.layer(x.chunk(2)[self.rank]))
        if self.gathers:
            parts = [torch.empty_like(mine) for _ in range(2)]
            dist.all_gather(parts, mine.detach())
            parts[self.rank] = mine
            return torch.cat(parts)
        return mine


@pytest.mark.parametrize("gathers", [True, False])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_a_batch_that_the_model_divides(gathers: bool, dropout: float) -> None:
    def program(rank: int) -> None:
        torch.manual_seed(rank)
        model = lambda: DistributedDataParallel(Divided(rank, gathers, dropout))  # noqa: E731
        train(rank, lambda _, step: seeded(step), model)

    assert findings(program, "threaded") == []


@pytest.mark.parametrize("values", ["sample", "all"])
def test_a_loss_that_each_rank_takes_of_its_part_of_the_batch(values: str) -> None:
    def program(rank: int) -> None:
        model = DistributedDataParallel(network())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(20):  # of these a sample takes no gradients by their numbers
            optimizer.zero_grad()
            model(seeded(step))[rank::2].square().mean().backward()
            optimizer.step()

    assert findings(program, "threaded", values=values) == []


@pytest.mark.slow
@pytest.mark.gloo
@pytest.mark.parametrize("seed", [lambda rank: 0, lambda rank: rank], ids=["alike", "by rank"])
def test_dropout_does_not_hide_the_same_batch(seed: Callable[[int], int]) -> None:
    def program(rank: int) -> None:
        def model() -> nn.Module:
            made = nn.Sequential(network(), nn.Dropout(0.5))
            torch.manual_seed(seed(rank))
            return DistributedDataParallel(made)

        train(rank, lambda _, step: seeded(step), model)

    assert [one.code for one in findings(program, "gloo")] == ["SC905"]


def test_the_first_batches_and_the_beginnings_of_episodes_may_be_shared() -> None:
    warm = lambda rank, step: seeded(step + (100 * rank if step > 3 else 0))  # noqa: E731
    assert findings(lambda rank: train(rank, warm, steps=12), "threaded") == []
    last = lambda rank, step: seeded(step + (100 * rank if step < 37 else 0))  # noqa: E731
    assert findings(lambda rank: train(rank, last, steps=40), "threaded") == []
    half = lambda rank, step: seeded(step + (100 * rank if step < 8 else 0))  # noqa: E731
    [finding] = findings(lambda rank: train(rank, half, steps=16), "threaded")
    assert "from step 9 on: in 8 of 16 steps" in finding.message


class Told(nn.Module):
    """Reads its data from something other than a tensor; the table is the same everywhere, and new in each step."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 2)

    def forward(self, data: Any, table: torch.Tensor) -> torch.Tensor:
        seeds = [int(one) for one in data] if isinstance(data, list) else [data.seed]
        out: torch.Tensor = self.layer(torch.cat([seeded(one) for one in seeds])) * table.mean()
        return out


class Unknown:
    def __init__(self, seed: int) -> None:
        self.seed = seed


@dataclass
class Known:
    seed: int


@pytest.mark.parametrize(
    ("data", "silent"),
    [
        (lambda rank, step: [f"{100 * rank + step}"], True),
        (lambda rank, step: [f"{step}"], False),
        (lambda rank, step: Unknown(100 * rank + step), True),
        (lambda rank, step: Known(100 * rank + step), True),
        (lambda rank, step: Known(step), False),
    ],
)
def test_data_that_are_no_tensors(data: Callable[[int, int], Any], silent: bool) -> None:
    def program(rank: int) -> None:
        torch.manual_seed(0)
        model = DistributedDataParallel(Told())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(6):
            optimizer.zero_grad()
            model(data(rank, step), torch.linspace(0, step + 1, 16)).square().mean().backward()
            optimizer.step()

    assert (findings(program, "threaded") == []) == silent


class Detector(nn.Module):
    """Takes images and a target for each, as torchvision's do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 2)

    def forward(self, images: list[torch.Tensor], targets: list[dict[str, torch.Tensor]]) -> torch.Tensor:
        out: torch.Tensor = self.layer(torch.cat(images)) * sum(one["boxes"].mean() for one in targets)
        return out


def test_targets_that_are_mappings_are_read() -> None:
    def program(rank: int) -> None:
        torch.manual_seed(0)
        model = DistributedDataParallel(Detector())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(6):
            optimizer.zero_grad()
            images = [seeded(step), seeded(100 + step)]
            model(images, [{"boxes": one + 1} for one in images]).square().mean().backward()
            optimizer.step()

    [finding] = findings(program, "threaded")
    assert (finding.code, finding.ranks) == ("SC905", (0, 1))


def test_what_a_part_of_the_model_has_computed_is_no_batch() -> None:
    class Context(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Parameter(torch.rand(4, 6))

        def forward(self) -> torch.Tensor:
            return self.words * 1.0

    def program(rank: int) -> None:
        torch.manual_seed(0)
        context, encoder = DistributedDataParallel(Context()), DistributedDataParallel(network())
        optimizer = torch.optim.SGD([*context.parameters(), *encoder.parameters()], lr=0.1)
        for step in range(6):
            optimizer.zero_grad()
            (encoder(context()).sum() * seeded(100 * rank + step).mean()).backward()
            optimizer.step()

    assert findings(program, "threaded") == []


def sharded(rank: int, batch: Batch, *, replicas: bool = False, names: tuple[str, ...] = ("dp",)) -> None:
    mesh = init_device_mesh("cpu", (2, 2) if replicas else (4,), mesh_dim_names=names)

    def model() -> nn.Module:
        made = network()
        fully_shard(made[0], mesh=mesh)
        fully_shard(made, mesh=mesh)
        return made

    train(rank, batch, model)


@pytest.mark.slow
@pytest.mark.gloo
def test_sharded_models() -> None:
    assert findings(lambda rank: sharded(rank, lambda rank, step: seeded(100 * rank + step)), "gloo", 4) == []
    [finding] = findings(lambda rank: sharded(rank, lambda rank, step: seeded(step)), "gloo", 4)
    assert (finding.code, finding.ranks, finding.culprits) == ("SC905", (0, 1, 2, 3), ())
    assert "from step 1 on: in 6 of 6 steps" in finding.message

    def half(rank: int) -> None:
        sharded(rank, lambda rank, step: seeded(100 * (rank % 2) + step), replicas=True, names=("outer", "inner"))

    [finding] = findings(half, "gloo", 4)
    assert finding.message.startswith("ranks 0 and 2 give the model the same batch")
    assert "; so do ranks 1 and 3 among themselves" in finding.message


def sharded_by(mesh: Any) -> nn.Module:
    made = network()
    fully_shard(made, mesh=mesh)
    return made


def peers(rank: int, *, name: str) -> None:
    """Data are shared out over one dimension of a mesh, and FSDP shards over both."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", name))
    flat = mesh._flatten("dp_all")
    train(rank, lambda rank, step: seeded(100 * (rank // 2) + step), lambda: sharded_by(flat))


@pytest.mark.slow
@pytest.mark.gloo
def test_peers_in_another_dimension_of_the_mesh_may_share_their_input() -> None:
    assert findings(lambda rank: peers(rank, name="cp"), "gloo", 4) == []
    [finding] = findings(lambda rank: peers(rank, name="dp_shard"), "gloo", 4)
    assert finding.code == "SC905"


@pytest.mark.slow
@pytest.mark.gloo
def test_tensor_parallel_peers_are_in_no_data_parallel_group() -> None:
    def program(rank: int) -> None:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        batch = lambda rank, step: seeded(100 * (rank // 2) + step)  # noqa: E731
        train(rank, batch, lambda: DistributedDataParallel(network(), process_group=mesh.get_group("dp")))
        train(rank, batch, lambda: sharded_by(mesh["dp"]))

    assert findings(program, "gloo", 4) == []


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(rows)
        dist.all_to_all_single(out, rows.contiguous())
        return out

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        out = torch.empty_like(gradient)
        dist.all_to_all_single(out, gradient.contiguous())
        return out


class Exchanging(nn.Module):
    """A gate, and an expert whose rows come from all ranks; with ``scattered``, each rank takes its part of rank 0's
    batch first.
    """

    def __init__(self, *, scattered: bool) -> None:
        super().__init__()
        self.gate, self.expert, self.dropout = nn.Linear(6, 6), nn.Linear(6, 6), nn.Dropout(0.5)
        self.scattered = scattered

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        if self.scattered:
            parts = [one.contiguous() for one in batch.chunk(dist.get_world_size())]
            mine = torch.empty_like(parts[0])
            dist.scatter(mine, parts if dist.get_rank() == 0 else None)
            return self.expert(self.dropout(self.gate(mine)))  # type: ignore[no-any-return]
        back: torch.Tensor = _Exchange.apply(self.expert(_Exchange.apply(self.gate(batch))))  # type: ignore[no-untyped-call]
        return back


@pytest.mark.slow
@pytest.mark.gloo
@pytest.mark.parametrize("scattered", [False, True])
def test_an_exchange_between_layers_divides_no_batch(scattered: bool) -> None:
    def program(rank: int) -> None:
        torch.manual_seed(0)
        model = Exchanging(scattered=scattered)
        torch.manual_seed(rank)
        train(rank, lambda rank, step: seeded(step), lambda: DistributedDataParallel(model))

    assert [one.code for one in findings(program, "gloo")] == ([] if scattered else ["SC905"])


class Raises(nn.Module):
    """A model that holds a scripted layer, compiles a part of itself, and raises in one pass."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.scripted = nn.Linear(6, 6), torch.jit.script(nn.Linear(6, 2))
        self.fails = False

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        hidden = self.first(batch)
        if self.fails:
            raise MemoryError("one pass")
        return self.scripted(hidden)  # type: ignore[no-any-return]


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
def test_a_pass_that_raises_leaves_no_hook() -> None:
    def program(rank: int) -> None:
        torch.manual_seed(0)
        inner = Raises()
        model = DistributedDataParallel(inner)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(4):
            inner.fails = step == 1
            try:
                model(seeded(10 * step + rank)).square().mean().backward()
            except MemoryError:
                hooks = [*inner.first._forward_pre_hooks.values(), *inner._forward_hooks.values()]
                assert hooks == []
                continue
            optimizer.step()
            optimizer.zero_grad()

    assert findings(program, "threaded") == []


@pytest.mark.slow
@pytest.mark.gloo
def test_a_part_that_is_compiled_whole_is_compiled_as_without_values() -> None:
    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = network()

        def forward(self, batch: torch.Tensor) -> torch.Tensor:
            compiled = torch.compile(self.layers.__call__, fullgraph=True, backend="eager")
            return compiled(batch)  # type: ignore[no-any-return]

    def program(rank: int) -> None:
        warnings.simplefilter("ignore")  # dynamo looks at the gradient of what enters
        torch.manual_seed(0)
        train(rank, lambda rank, step: seeded(10 * step + rank), lambda: DistributedDataParallel(Whole()), steps=3)

    assert findings(program, "gloo") == []
