"""The program of a plan equals what a dry run of a training script sends in a step: op, group, bytes, dtype, count."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

pytest.importorskip("torch")

from simcoll.core.trace import Trace
from simcoll.plan.layout import Layout
from simcoll.plan.model_files import model_named
from simcoll.plan.program import Conventions, program_of
from simcoll.pricing.job import recorded_job
from simcoll.spec.call import bytes_of
from tests.support.preflights import DryRuns

pytestmark = [pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]

SMALL = """
[[model]]
name = "small"
layers = 2
hidden = 64
vocabulary = 256
heads = 4
kv_heads = 2
head_dim = 16
ffn = 128
"""

THREE_D = """
[[model]]
name = "three-d"
layers = 4
hidden = 32
vocabulary = 64
heads = 8
kv_heads = 4
head_dim = 4
ffn = 96
"""

VARIED = """
import sys
from contextlib import nullcontext
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.experimental import context_parallel
from torch.nn.parallel import DistributedDataParallel
sys.path.insert(0, {examples!r})
from llama_fsdp2 import SIZES, Llama

kind, replicas, cp, micro_batches, layers, dim, shared, hidden, vocabulary = sys.argv[1], *map(int, sys.argv[2:])
device = "cuda" if cp > 1 else "cpu"
dist.init_process_group()
model = Llama(layers, dim, 4, shared, hidden, vocabulary).to(device)
if kind == "ddp":
    model = DistributedDataParallel(model)
else:
    shards = dist.get_world_size() // replicas
    if cp > 1:
        mesh = init_device_mesh(device, (shards // cp, cp), mesh_dim_names=("data", "context"))
        context, mesh = mesh["context"], mesh["data", "context"]._flatten("shard")
    else:
        mesh = init_device_mesh(device, (replicas, shards), mesh_dim_names=("replicate", "shard"))
        mesh = mesh if replicas > 1 else mesh["shard"]
    stays = kind == "zero2"
    fully_shard(model.embeddings, mesh=mesh, reshard_after_forward=not stays)
    for number, layer in enumerate(model.layers):
        if kind == "recompute":
            layer = model.layers[number] = checkpoint_wrapper(layer)
        fully_shard(layer, mesh=mesh, reshard_after_forward=not stays)
    fully_shard([model.norm, model.output], mesh=mesh, reshard_after_forward=False)
    fully_shard(model, mesh=mesh)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(9):
    for _ in range(micro_batches):
        tokens = torch.randint(vocabulary, (1, 32), device=device)
        with context_parallel(context, buffers=[tokens], buffer_seq_dims=[1]) if cp > 1 else nullcontext():
            loss = model(tokens).sum()
            loss.backward()
    dist.all_reduce(loss.detach())
    optimizer.step()
    optimizer.zero_grad()
"""

RINGS = """
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental import context_parallel
from torch.nn import functional

dist.init_process_group()
mesh = init_device_mesh("cuda", (dist.get_world_size(),))
for _ in range(9):
    parts = [torch.zeros(1, heads, 32, 16, dtype=torch.bfloat16, device="cuda") for heads in (4, 2, 2)]
    with context_parallel(mesh, buffers=parts, buffer_seq_dims=[2, 2, 2], no_restore_buffers=set(parts)):
        query, key, value = (one.requires_grad_() for one in parts)
        functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True).sum().backward()
    torch.optim.SGD(parts, lr=0.1).step()
"""

MIXTURES = """
import torch
import torch.distributed as dist
from torch import nn

class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows):
        arrived = torch.empty_like(rows)
        dist.all_to_all_single(arrived, rows.contiguous())
        return arrived

    @staticmethod
    def backward(ctx, gradient):
        return Exchange.apply(gradient)

dist.init_process_group("gloo")
rows = torch.zeros(32 * 2, 64, requires_grad=True)
optimizer = torch.optim.SGD([rows], lr=0.1)
for _ in range(9):
    sent = torch.full((8,), 8)
    dist.all_to_all_single(torch.empty_like(sent), sent)
    there = Exchange.apply(rows)
    Exchange.apply(2 * there).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""

INTERLEAVED = """
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleInterleaved1F1B

dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
places = [chunk * ranks + rank for chunk in range(2)]
stages = [PipelineStage(nn.Linear(64, 64), place, 2 * ranks, torch.device("cpu")) for place in places]
schedule = ScheduleInterleaved1F1B(stages, n_microbatches=2 * ranks, loss_fn=lambda found, wanted: found.sum())
optimizer = torch.optim.SGD([one for stage in stages for one in stage.submod.parameters()], lr=0.1)
given = (torch.randn(2 * ranks, 32, 64),) if rank == 0 else ()
wanted = {"target": torch.zeros(2 * ranks)} if rank == ranks - 1 else {}
for _ in range(9):
    schedule.step(*given, **wanted)
    optimizer.step()
    optimizer.zero_grad()
"""

Sent = Counter[tuple[str, tuple[int, ...], int, str]]


@dataclass(frozen=True, slots=True)
class Case:
    """A script, its arguments, and its description as a plan; ``place`` is the script's own number of a rank.

    So many ``steps`` are recorded: they must be most of all calls to be seen as steps. Of a script that does one
    ``part`` of a step alone, that part is compared; ``script`` is then what it says.
    """

    script: str
    ranks: int
    model: str
    layout: Layout
    conventions: Conventions
    arguments: tuple[str, ...] = ()
    place: Callable[[int], int] = field(default=lambda rank: rank)
    steps: int = 8
    part: str = ""


def fsdp2(ranks: int) -> Case:
    layout = Layout(dp_shard=ranks, global_batch=ranks, seq_len=32)
    return Case("llama_fsdp2.py", ranks, SMALL, layout, Conventions(one_root=True), ("--train-steps", "5"), steps=4)


def three_d(ranks: int, pp: int, tp: int) -> Case:
    """The script numbers tensor parallel ranks first, then stages, then replicas."""
    dp = ranks // (pp * tp)
    layout = Layout(dp_shard=dp, tp=tp, pp=pp, micro_batch=4, global_batch=8 * dp, seq_len=16)

    def place(rank: int) -> int:
        return rank // tp % dp * pp * tp + rank // (tp * dp) * tp + rank % tp

    wide = Conventions(*("float32",) * 3, one_root=True, keeps_gathered=False, splits_logits=False, reports_loss=True)
    arguments = ("--pp", str(pp), "--tp", str(tp), "--steps", "9")
    return Case("training/llama_3d.py", ranks, THREE_D, layout, wide, arguments, place, steps=4 if tp > 1 else 8)


def varied(
    kind: str,
    ranks: int,
    *,
    replicas: int = 1,
    cp: int = 1,
    micro: int = 1,
    shape: tuple[int, int, int, int] = (2, 64, 128, 256),
) -> Case:
    layers, dim, hidden, vocabulary = shape
    # The model repeats its keys and values before attention, so that context parallel ranks exchange all heads.
    shared = 4 if cp > 1 else 2
    model = SMALL.replace("layers = 2", f"layers = {layers}").replace("hidden = 64", f"hidden = {dim}")
    model = model.replace("ffn = 128", f"ffn = {hidden}").replace("= 256", f"= {vocabulary}")
    model = model.replace("head_dim = 16", f"head_dim = {dim // 4}")
    zero = {"ddp": 0, "zero2": 2}.get(kind, 3)
    model = model.replace("kv_heads = 2", f"kv_heads = {shared}")
    shards = ranks // replicas // cp
    batch = shards * replicas * micro
    layout = Layout(dp_shard=shards, dp_replicate=replicas, cp=cp, global_batch=batch, seq_len=32, zero=zero)
    layout = replace(layout, recompute="full" if kind == "recompute" else "none")
    arguments = (kind, *map(str, (replicas, cp, micro, layers, dim, shared, hidden, vocabulary)))
    return Case("", ranks, model, layout, Conventions(*("float32",) * 3, clips=False, reports_loss=True), arguments)


def one_part(part: str, ranks: int) -> Case:
    """The calls of context parallel, of a mixture of experts, or of interleaved pipeline stages."""
    wide, layers = Conventions(*("float32",) * 3), SMALL.replace("layers = 2", "layers = 1")
    layout = Layout(seq_len=32)
    if part == "context":
        return Case(RINGS, ranks, layers, replace(layout, cp=ranks), Conventions(), part=part)
    if part == "expert":
        mixture = f"{layers}[model.experts]\ncount = 8\ntop_k = 2\nhidden = 32\n"
        spread = replace(layout, dp_shard=ranks, ep=ranks, global_batch=ranks)
        return Case(MIXTURES, ranks, mixture.replace("ffn = 128\n", ""), spread, wide, part=part)
    deep = replace(layout, pp=ranks, virtual_stages=2, schedule="interleaved", global_batch=2 * ranks)
    return Case(INTERLEAVED, ranks, SMALL.replace("layers = 2", f"layers = {2 * ranks}"), deep, wide, part=part)


ALWAYS = [three_d(4, 2, 2), varied("ddp", 4), varied("fsdp", 4, micro=2, replicas=2), varied("fsdp", 4, cp=2)]
ALWAYS += [one_part(part, 2) for part in ("context", "expert", "stage")]
AT_NIGHT = [
    varied("fsdp", 4, micro=2),
    varied("fsdp", 4, replicas=2),
    *(fsdp2(ranks) for ranks in (2, 4, 8)),
    three_d(2, 2, 1),
    three_d(8, 2, 2),
    three_d(4, 2, 1),
    varied("ddp", 2, shape=(5, 512, 1536, 2000)),
    varied("fsdp", 8),
    varied("fsdp", 6),
    varied("fsdp", 8, replicas=2),
    varied("zero2", 4),
    varied("recompute", 4),
    varied("fsdp", 8, cp=4, shape=(3, 32, 96, 64)),
    varied("recompute", 4, cp=4, micro=2),
    *(one_part(part, 4) for part in ("context", "expert", "stage")),
]


def arguments(case: Case, folder: Path) -> tuple[object, ...]:
    script = ROOT / "examples" / case.script
    if case.part or not case.script:
        script = folder / f"{case.part or 'varied'}.py"
        text = case.script or VARIED.format(examples=str(ROOT / "examples"))
        script.write_text(text, encoding="utf-8")
    return ("--world-size", case.ranks, "--steps", case.steps, "--jobs", 1, script, *case.arguments)


def messages(traces: tuple[Trace, ...], steps: int) -> dict[int, Sent]:
    """The floats that each rank sends and receives in a step: those of all steps are alike.

    In its first step torch also tells the stages of each other's shapes, in integers.
    """
    found = {}
    for trace in traces:
        sent: Sent = Counter()
        for row in trace.slots:
            call, members = trace.signatures[row["signature"]], trace.groups[row["group"]].ranks
            side = (call.inputs or call.outputs)[0]
            if side.dtype == "float32" and call.peer is not None:
                members = (trace.rank, members[call.peer])
                sent[call.op, tuple(sorted(members)), bytes_of([side]) or 0, side.dtype] += 1
        assert not any(count % steps for count in sent.values())
        found[trace.rank] = Counter({key: count // steps for key, count in sent.items()})
    return found


def recorded(traces: tuple[Trace, ...]) -> dict[int, Sent]:
    """What each rank sends in its second step."""
    job = recorded_job(traces)
    found = {}
    for trace, steps in zip(traces, job.steps, strict=True):
        assert steps is not None
        sent: Sent = Counter()
        for row in trace.slots[steps.first + steps.period : steps.first + 2 * steps.period]:
            call, members = trace.signatures[row["signature"]], trace.groups[row["group"]].ranks
            if call.peer is not None:
                members = (trace.rank, members[call.peer])
            if len(members) == 1:
                continue
            sides = [side for side in (call.inputs, call.outputs) if side]
            size = max(bytes_of(side) or 0 for side in sides)
            sent[call.op, tuple(sorted(members)), size, sides[0][0].dtype] += 1
        found[trace.rank] = sent
    return found


@pytest.fixture(scope="module")
def dry_runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[DryRuns, Path]]:
    folder = tmp_path_factory.mktemp("scripts")
    with DryRuns(tmp_path_factory.mktemp("dry")) as runs:
        yield runs, folder


def name(case: Case) -> str:
    return f"{case.ranks} {case.part or case.script} {' '.join(case.arguments)}"


@pytest.mark.parametrize(
    "case",
    [
        *(pytest.param(case, id=name(case)) for case in ALWAYS),
        *(pytest.param(case, id=name(case), marks=pytest.mark.nightly) for case in AT_NIGHT),
    ],
)
def test_a_plan_sends_what_the_script_sends(case: Case, dry_runs: tuple[DryRuns, Path], tmp_path: Path) -> None:
    runs, folder = dry_runs
    traces = runs.traces(*arguments(case, folder))
    real = messages(traces, case.steps) if case.part == "stage" else recorded(traces)
    described = tmp_path / "model.toml"
    described.write_text(case.model, encoding="utf-8")
    model = model_named(str(described))
    assert set(real) == set(range(case.ranks))
    for rank in range(case.ranks):
        planned: Sent = Counter()
        for one in program_of(model, case.layout, case.conventions, rank):
            if case.part and one.part != case.part and (one.part, one.group) != ("small", case.part):
                continue
            members = tuple(case.place(member) for member in one.ranks)
            planned[one.op, tuple(sorted(members)), one.bytes, one.dtype] += int(one.count)
        mine = real[case.place(rank)]
        assert planned == mine, (sorted((planned - mine).items()), sorted((mine - planned).items()))
