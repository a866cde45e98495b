"""``simcoll estimate script.py``: volumes to the byte, the price of ranks that did not run, and no price for a hang."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.fsdp2_volumes import Sharded, llama, padded, volumes

pytest.importorskip("torch")

pytestmark = [pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 240
FINDINGS = 3

HSDP = """
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (dist.get_world_size() // 8, 8), mesh_dim_names=("replicate", "shard"))
model = nn.Sequential(nn.Linear(30, 50), nn.ReLU(), nn.Linear(50, 10))
for layer in (model[0], model[2]):
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):
    model(torch.randn(4, 30)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""

DDP = """
import sys
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
dtype = getattr(torch, sys.argv[1])
model = nn.Sequential(*(nn.Linear(100, 100) for _ in range(8))).to(dtype)
model = DistributedDataParallel(model, bucket_cap_mb=0.1)
if sys.argv[2:]:
    model.register_comm_hook(None, getattr(default_hooks, sys.argv[2]))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(6):
    model(torch.randn(512, 100, dtype=dtype)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""

FAILS_ON_A_GUESS = """
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
weights = torch.rand(1000) + dist.get_rank()
dist.broadcast(weights, 0)
assert weights[0].item() < 1
dist.all_reduce(torch.ones(8))
"""

PIPELINE = """
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
mesh = init_device_mesh("cpu", (4, size // 4), mesh_dim_names=("stage", "data"))
stage, weight = mesh.get_local_rank("stage"), torch.nn.Parameter(torch.randn(64, 64))
optimizer = torch.optim.SGD([weight], lr=0.1)
for _ in range(3):
    x = torch.randn(64, 64)
    if stage > 0:
        dist.recv(x, rank - size // 4)
    y = x @ weight
    if stage < 3:
        dist.send(y.detach(), rank + size // 4)
    y.sum().backward()
    dist.all_reduce(weight.grad, group=mesh.get_group("data"))
    optimizer.step()
    optimizer.zero_grad()
"""

DISAGREEING = """
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(8 if dist.get_rank() != 5 else 9))
"""


def estimate(script: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command from another folder."""
    command = [str(Path(sys.executable).parent / "simcoll"), "estimate", str(script), *arguments]
    return subprocess.run(command, cwd=script.parent, text=True, capture_output=True, timeout=LIMIT, check=False)


def written(folder: Path, text: str) -> Path:
    """A script in a folder of its own."""
    script = folder / "train.py"
    script.write_text(text, encoding="utf-8")
    return script


def priced(script: Path, out: Path, *arguments: str) -> dict[str, Any]:
    """The command's document; it must end well."""
    done = estimate(script, "--out", str(out), "--json", *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def step(document: dict[str, Any]) -> list[tuple[str, int, int, int]]:
    """Op, ranks of the group, calls and bytes of a step."""
    rows: Sequence[dict[str, Any]] = document["scenarios"][0]["steps"]["volumes"]
    return [(row["op"], row["size"], row["calls"], row["bytes"]) for row in rows]


def test_fsdp2_moves_what_the_shapes_of_its_parameters_say(tmp_path):
    layers = 3
    script = ROOT / "examples" / "llama_fsdp2.py"
    cluster = ("--world-size", "512", "--gpu", "h100", "--nodes", "64", "--ranks", "0,511", "--fake-tensors")
    document = priced(script, tmp_path, *cluster, "--", "--size", "8b", "--layers", str(layers), "--length", "2048")
    expected = volumes(llama(layers, 4096, 32, 8, 14336, 128256), 512)
    assert {op: size for op, _, _, size in step(document)} == expected
    assert {op: calls for op, _, calls, _ in step(document)} == {
        "all_gather": 2 * layers + 1,
        "reduce_scatter": layers + 1,
        "all_reduce": 1,
    }
    scenario = document["scenarios"][0]
    assert scenario["world_size"] == document["ranks_with_records"] == 512
    # Three matrix products of two FLOPs an element each; attention has two forward and five backward.
    matrices = layers * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336) + 4096 * 128256
    flops = 6 * matrices * 2048 + layers * 7 * 2 * 4096 * 2048**2
    assert scenario["steps"]["flops"] == flops
    assert scenario["totals"]["compute"]["mean"] > 3 * flops / (0.4 * 989.4e12)
    # The next layer's parameters are gathered while this one computes.
    totals = scenario["totals"]
    assert 0 < totals["overlapped"]["mean"] < totals["communication"]["mean"]


def test_hsdp_reduces_shards_across_replicas(tmp_path):
    script = written(tmp_path, HSDP)
    cluster = ("--world-size", "128", "--gpu", "h100", "--nodes", "16", "--ranks", "0,7,8,127")
    document = priced(script, tmp_path / "out", *cluster)
    model = Sharded([[(50, 30), (50,)], [(10, 50), (10,)]], [])
    expected = volumes(model, 8, gathered=4)
    shard = sum(padded(shape, 8) for shape in model.shapes) // 8 * 4
    assert step(document) == [
        ("all_gather", 8, 4, expected["all_gather"]),
        ("reduce_scatter", 8, 2, expected["reduce_scatter"]),
        ("all_reduce", 16, 2, shard),
    ]
    groups = {tuple(group["ranks"]) for group in document["scenarios"][0]["groups"]}
    assert {tuple(range(8)), tuple(range(120, 128)), tuple(range(7, 128, 8))} < groups
    assert document["ranks_with_records"] == 128


@pytest.mark.parametrize(
    ("dtype", "width"), [(("float32",), 4), (("bfloat16",), 2), (("float32", "fp16_compress_hook"), 2)]
)
def test_ddp_adds_up_each_parameter_once_in_buckets(tmp_path, dtype, width):
    script = written(tmp_path, DDP)
    cluster = ("--world-size", "64", "--gpu", "h100", "--nodes", "8", "--ranks", "0,63", "--steps", "4")
    document = priced(script, tmp_path / "out", *cluster, "--", *dtype)
    parameters = 8 * (100 * 100 + 100)
    (found,) = step(document)
    assert (found[0], found[1], found[3]) == ("all_reduce", 64, width * parameters)
    assert found[2] > 1
    # All buckets but the last are added up while the backward pass goes on.
    assert document["scenarios"][0]["totals"]["overlapped"]["mean"] > 0


def test_stages_that_did_not_run_have_the_programs_of_their_own_stage(tmp_path):
    script = written(tmp_path, PIPELINE)
    cluster = ("--world-size", "16", "--gpu", "h100", "--nodes", "2")
    document = priced(script, tmp_path / "out", *cluster, "--ranks", "0,4,8,12")
    assert not [note for note in document["notes"] if "without a known other end" in note or "nearest" in note]
    collectives = document["scenarios"][0]["collectives"]
    messages = {tuple(one["message"]) for one in collectives if one["message"]}
    assert messages == {(rank, rank + 4) for rank in range(12)}
    assert len([one for one in collectives if one["op"] == "all_reduce"]) == 3 * 4
    everybody = priced(script, tmp_path / "all", *cluster, "--ranks", "0-15")
    chosen = priced(script, tmp_path / "chosen", *cluster)
    prices = [
        {name: found["scenarios"][0][name] for name in ("seconds", "totals", "steps", "ranks", "kinds")}
        for found in (document, chosen, everybody)
    ]
    assert prices[0] == prices[1] == prices[2]
    assert len([*(tmp_path / "chosen").glob("rank*.simcoll")]) < 16


def test_a_rank_that_was_not_followed_to_its_end_is_named_first(tmp_path):
    script = written(tmp_path, FAILS_ON_A_GUESS)
    done = estimate(script, "--world-size", "4", "--gpu", "h100")
    lines = " ".join(done.stdout.split())
    assert done.returncode == 0
    assert lines.startswith("warning: not all of the program is priced: ranks 1-3 failed on guessed values")


STARTS = "import torch\nimport torch.distributed as dist\n"
EMPTY = {
    "steps before the first collective": (
        "dist.init_process_group('gloo')\n"
        "w = torch.nn.Parameter(torch.ones(3)); optimizer = torch.optim.SGD([w], lr=0.1)\n"
        "for step in range(20):\n"
        "    w.sum().backward(); optimizer.step()\n"
        "dist.all_reduce(w.data)\n",
        "each rank ended after 3 steps of an optimiser, before its first collective (--steps 30)",
    ),
    "no group": (
        "raise SystemExit(0)\n",
        "the program never created a process group; its output is in ",
    ),
    "no collective": ("dist.init_process_group('gloo')\n", "the program made no collective and no message"),
}


@pytest.mark.parametrize("case", EMPTY)
def test_why_there_is_nothing_to_price_is_said(tmp_path, case):
    program, reason = EMPTY[case]
    done = estimate(written(tmp_path, STARTS + program), "--world-size", "2", "--gpu", "h100")
    assert done.returncode == 2
    assert f"nothing to price: {reason}" in done.stderr
    assert done.stderr.count("\n") == 1


def test_steps_that_no_optimiser_made_are_not_said_to_have_ended_a_rank(tmp_path):
    program = STARTS + "dist.init_process_group('gloo')\ndist.all_reduce(torch.ones(3))\n"
    document = priced(
        written(tmp_path, program), tmp_path / "out", "--world-size", "2", "--gpu", "h100", "--steps", "2"
    )
    assert any("no optimiser made 2 steps, so that --steps ended no rank" in note for note in document["notes"])


def test_options_of_the_script_need_a_mark(tmp_path):
    done = estimate(written(tmp_path, DDP), "--world-size", "4", "--gpu", "h100", "--lr", "0.1")
    assert done.returncode == 2
    assert "--lr 0.1 (a script's own options follow -- at the end)" in done.stderr


def test_what_if_holds_for_a_script(tmp_path):
    script = written(tmp_path, PIPELINE)
    cluster = ("--world-size", "8", "--gpu", "h100", "--nodes", "1")
    changes = ("--straggler", "2:3", "--slow-link", "host0/gpu1,4", "--algorithm", "ring", "--compare", "dgx-b200")
    timeline = tmp_path / "timeline.json"
    document = priced(script, tmp_path / "out", *cluster, *changes, "--timeline", str(timeline))
    plain, changed, other = document["scenarios"]
    assert changed["ratio"] > 1
    assert changed["totals"]["compute"]["most_rank"] == 2
    assert other["topology"] == "dgx-b200"
    assert other["totals"]["compute"]["mean"] < plain["totals"]["compute"]["mean"]
    assert {event["pid"] for event in json.loads(timeline.read_text())["traceEvents"]} == set(range(8))


def test_what_would_hang_has_no_price(tmp_path):
    done = estimate(written(tmp_path, DISAGREEING), "--world-size", "8", "--gpu", "h100", "--json")
    report = json.loads(done.stdout)
    assert done.returncode == FINDINGS
    assert [(found["code"], found["culprits"]) for found in report["findings"]] == [("SC102", [5])]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--world-size", "16", "--gpu", "h100"), "the job has 16 ranks"),
        (("--world-size", "8"), "no topology is given"),
        (("--world-size", "8", "--gpu", "h100", "--bytes", "1MB"), "--bytes goes with one collective"),
        (("--world-size", "8", "--gpu", "h100", "--steps", "0"), "--steps 0"),
        (("--world-size", "8", "--gpu", "h100", "--mfu", "2"), "--mfu '2'"),
        (("--world-size", "8", "--gpu", "h100", "--ranks", "9"), "ranks count from 0"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_runs(tmp_path, arguments, said):
    done = estimate(written(tmp_path, DISAGREEING), *arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
