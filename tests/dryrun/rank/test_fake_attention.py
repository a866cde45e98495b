"""Attention of DTensors on fake GPUs takes CUDA's operators, whose values and gradients are right."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.support.preflights import DryRuns

pytestmark = [pytest.mark.slow]

PROGRAM = """\
import os, sys
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.utils.checkpoint import checkpoint

mesh = init_device_mesh("cuda", (int(os.environ["WORLD_SIZE"]),))
torch.manual_seed(0)
dtype, kind = getattr(torch, sys.argv[1]), sys.argv[2]
q, k, v = (torch.randn(2, 8, 4, 16, dtype=dtype).transpose(1, 2) for _ in range(3))
mask = {"mask": torch.ones(8, 8, dtype=torch.bool).tril(), "bias": torch.randn(8, 8, dtype=dtype)}.get(kind)
options = {"is_causal": kind == "causal"}
if mask is not None:
    options["attn_mask"] = mask

plain = [one.clone().requires_grad_() for one in (q, k, v)]
expected = F.scaled_dot_product_attention(*plain, **options)
expected.float().square().sum().backward()

split = [distribute_tensor(one.cuda(), mesh, [Shard(1)]).requires_grad_() for one in (q, k, v)]
if mask is not None:
    options["attn_mask"] = distribute_tensor(mask.cuda(), mesh, [Replicate()])
attention = F.scaled_dot_product_attention
if kind == "recomputed":
    found = checkpoint(lambda *given: attention(*given, **options), *split, use_reentrant=False)
else:
    found = attention(*split, **options)
assert found.placements == (Shard(1),), found.placements
assert found.to_local().device.type == "cuda"
found.to_local().float().square().sum().backward()

def own(whole):
    return whole.chunk(dist.get_world_size(), 1)[dist.get_rank()]

close = {"rtol": 2e-2, "atol": 2e-2} if dtype is torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-4}
assert torch.allclose(found.to_local().detach().cpu(), own(expected.detach()), **close)
for one, other in zip(split, plain):
    assert torch.allclose(one.grad.to_local().cpu(), own(other.grad), **close)
print("done")
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DryRuns]:
    with DryRuns(tmp_path_factory.mktemp("runs")) as made:
        yield made


@pytest.mark.parametrize("kind", ["plain", "causal", "mask", "bias", "recomputed"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_heads_are_attended_where_they_are(dtype: str, kind: str, runs: DryRuns, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(PROGRAM, encoding="utf-8")
    code, out = runs.run("--world-size", "2", script, dtype, kind)
    logs = (out / "rank00000.log").read_text(encoding="utf-8")
    assert (code, logs.rstrip().endswith("done")) == (0, True), logs


FLEX = """\
import sys
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank())
torch.manual_seed(0)
plain = [torch.randn(1, heads, 32, 16, requires_grad=True) for heads in (4, 2, 2)]
expected = F.scaled_dot_product_attention(*plain, is_causal=True, enable_gqa=True)
expected.square().sum().backward()

given = [one.detach().cuda().requires_grad_() for one in plain]
mask = create_block_mask(lambda b, h, q, kv: q >= kv, None, None, 32, 32, device="cuda")
attention = torch.compile(flex_attention) if sys.argv[1] == "compiled" else flex_attention
found = attention(*given, block_mask=mask, enable_gqa=True)
assert found.device.type == "cuda"
found.square().sum().backward()
assert torch.allclose(found.detach().cpu(), expected.detach(), rtol=1e-4, atol=1e-4)
for one, other in zip(given, plain):
    dist.all_reduce(one.grad)
    assert torch.allclose(one.grad.cpu(), 2 * other.grad, rtol=1e-4, atol=1e-4)
print("done")
dist.destroy_process_group()
"""


@pytest.mark.parametrize("way", ["compiled", "eager"])
def test_flex_attention_has_values_and_gradients(way: str, runs: DryRuns, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(FLEX, encoding="utf-8")
    code, out = runs.run("--world-size", "2", script, way)
    logs = (out / "rank00000.log").read_text(encoding="utf-8")
    assert (code, logs.rstrip().endswith("done")) == (0, True), logs
