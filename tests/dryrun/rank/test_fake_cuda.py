"""What programs find that ask torch for CUDA in a dry run, with memory and without."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

pytestmark = [pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[3]

RUNNER = """
import json, sys, traceback
import torch
from torch import nn
from simcoll.dryrun.rank.torch_patches import patched_torch
from simcoll.core.patches import Patches
from simcoll.dryrun.rank.fake_cuda import install_fake_cuda
from simcoll.dryrun.rank.taint import TaintTracker

snippets, found = json.load(sys.stdin), {}
REAL = torch.Stream, torch.Event
patches = Patches()
devices, taint = install_fake_cuda(patches, 4), TaintTracker(lambda: None)
with patched_torch(patches, devices, taint, fake_tensors=sys.argv[1] == "fake"):
    for name, snippet in snippets.items():
        space = {"torch": torch, "nn": nn, "F": nn.functional, "REAL": REAL}
        try:
            exec(snippet, space)
            found[name] = str(space["found"])
        except Exception:
            found[name] = traceback.format_exc()
json.dump(found, sys.stdout)
"""

CUDA_1 = "cuda:1"

SNIPPETS: dict[str, tuple[str, str]] = {
    "empty": ("found = torch.empty(30, device='cuda').device", "cuda:0"),
    "tensor": ("found = torch.tensor([1.0], device='cuda:1').device", CUDA_1),
    "moved": ("found = (torch.ones(30).to('cuda:1', non_blocking=True) * 2).device", CUDA_1),
    "moved to another": ("found = torch.ones(30).cuda().to(torch.ones(30).cuda(1)).device", CUDA_1),
    "moved to the same is the same": ("x = torch.ones(30).cuda(); found = x.to('cuda:0') is x", "True"),
    "moved back": ("found = torch.ones(30).cuda(1).cpu().device", "cpu"),
    "view": ("found = torch.ones(30, device='cuda:1').view(5, 6)[1:].detach().device", CUDA_1),
    "as_tensor leaves its source": (
        "x = torch.ones(30); found = (torch.as_tensor(x, device='cuda').device, x.device)",
        "(device(type='cuda', index=0), device(type='cpu'))",
    ),
    "parameters by name": (
        "c = torch.cuda; state = c.random.get_rng_state(device=torch.device('cuda', 1)); "
        "c.set_rng_state(new_state=state, device=1); c.set_device(device=1); c.set_stream(stream=c.Stream()); "
        "found = (len(state), c.current_stream(device=1).query(), c.get_device_name(device=0), c.current_device()); "
        "c.set_device(device=0)",
        "(16, True, 'simcoll dry run', 1)",
    ),
    "a subclass that answers for itself": (
        """
class Sharded(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func == torch._C.TensorBase.device.__get__:
            return torch.device("cuda", 1)
        raise RuntimeError("not supported")

found = torch.Tensor._make_subclass(Sharded, torch.ones(3)).device
""",
        CUDA_1,
    ),
    "is_cuda": ("found = (torch.ones(3).is_cuda, torch.ones(3).cuda().is_cuda)", "(False, True)"),
    "get_device": ("found = torch.ones(3, device='cuda:1').get_device()", "1"),
    "type": ("found = torch.ones(30, device='cuda:1').type()", "torch.cuda.FloatTensor"),
    "pinned": ("found = torch.ones(3, pin_memory=True).pin_memory().device", "cpu"),
    "DataParallel": (
        "m = nn.DataParallel(nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5)).cuda()); x = torch.ones(30, 4).cuda()\n"
        "y = m(x); y.sum().backward(); found = (y.shape, y.device, {p.grad.device for p in m.parameters()})",
        "(torch.Size([30, 5]), device(type='cuda', index=0), {device(type='cuda', index=0)})",
    ),
    "copies between GPUs": (
        "from torch.nn.parallel import comm; x = torch.ones(30).cuda(0)\n"
        "got = comm.broadcast_coalesced([x, x[:20]], [0, 1])\n"
        "found = ([[t.device.index for t in one] for one in got], comm.reduce_add([x, x.to(1)], 0).device.index,\n"
        "    [len(t) for t in comm.scatter(x, [0, 1], [10, 20])], comm.gather([x, x.to(1)], destination=-1).device)",
        "([[0, 0], [1, 1]], 0, [10, 20], device(type='cpu'))",
    ),
    "default device": (
        "torch.set_default_device('cuda:1'); found = torch.ones(30).device; torch.set_default_device(None)",
        CUDA_1,
    ),
    "generator": (
        "g = torch.Generator('cuda').manual_seed(1); found = torch.randn(30, generator=g, device='cuda').device",
        "cuda:0",
    ),
    "module": ("found = nn.Linear(30, 3).cuda(1).weight.device", CUDA_1),
    "module from meta": ("found = nn.Linear(30, 3, device='meta').to_empty(device='cuda:1').weight.device", CUDA_1),
    "module copied": (
        "import copy; found = next(copy.deepcopy(nn.Linear(30, 3, device='cuda:1')).parameters()).device",
        CUDA_1,
    ),
    "gradient": (
        "x = torch.ones(30, device='cuda:1', requires_grad=True); (x * 2).sum().backward(); found = x.grad.device",
        CUDA_1,
    ),
    "autocast": (
        "m = nn.Linear(30, 30).cuda()\nwith torch.autocast('cuda', torch.bfloat16):\n    found = m(torch.ones(2, 30).cuda()).dtype",  # noqa: E501
        "torch.bfloat16",
    ),
    "attention": (
        "from torch.nn.attention import sdpa_kernel, SDPBackend\nq = torch.ones(2, 4, 8, 8, device='cuda:1')\n"
        "with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):\n    found = F.scaled_dot_product_attention(q, q, q).device",
        CUDA_1,
    ),
    "streams": (
        "s = torch.cuda.Stream()\nwith torch.cuda.stream(s):\n    found = torch.cuda.current_stream() is s\n"
        "s.wait_stream(torch.cuda.current_stream()); torch.ones(3).cuda().record_stream(s)",
        "True",
    ),
    "events": ("e = torch.cuda.Event(enable_timing=True); e.record(); found = e.elapsed_time(e)", "1.0"),
    "memory": ("found = (torch.cuda.memory_allocated(), torch.cuda.memory_stats()['reserved'])", "(0, 0)"),
    "accelerator": (
        "found = (torch.accelerator.current_accelerator(), torch.accelerator.device_count())",
        "(device(type='cuda'), 4)",
    ),
    "beyond the last": (
        "try:\n    torch.cuda.set_device(4)\nexcept RuntimeError as e:\n    found = 'invalid device ordinal' in str(e)",
        "True",
    ),
    "a device context": ("with torch.cuda.device(1):\n    found = torch.empty(30, device='cuda').device", CUDA_1),
    "module by number": ("found = nn.Linear(30, 3).to(1).weight.device", CUDA_1),
    "saved and loaded": (
        "import io; b = io.BytesIO(); torch.save(nn.Linear(30, 3, device='cuda').state_dict(), b); b.seek(0)\n"
        "found = torch.load(b, map_location='cuda:1')['weight'].device",
        CUDA_1,
    ),
    "vmap": ("found = torch.func.vmap(lambda x: x * 2)(torch.ones(30, 3, device='cuda:1')).device", CUDA_1),
    "checkpointed": (
        "from torch.utils.checkpoint import checkpoint\nx = torch.ones(2, 30, device='cuda:1', requires_grad=True)\n"
        "checkpoint(nn.Linear(30, 30, device='cuda:1'), x, use_reentrant=False).sum().backward(); found = x.grad.device",  # noqa: E501
        CUDA_1,
    ),
    "in a thread": (
        "import threading; seen = []\n"
        "t = threading.Thread(target=lambda: seen.append(torch.ones(30, device='cuda:1').device)); t.start(); t.join()\n"  # noqa: E501
        "found = seen[0]",
        CUDA_1,
    ),
    "trained": (
        "m = nn.Sequential(nn.Linear(30, 30), nn.LayerNorm(30), nn.Linear(30, 3)).cuda()\n"
        "o = torch.optim.AdamW(m.parameters(), fused=True); s = torch.amp.GradScaler('cuda')\n"
        "for _ in range(3):\n"
        "    loss = F.cross_entropy(m(torch.randn(8, 30).cuda()), torch.randint(0, 3, (8,), device='cuda'))\n"
        "    s.scale(loss).backward(); s.unscale_(o); nn.utils.clip_grad_norm_(m.parameters(), 1.0)\n"
        "    s.step(o); s.update(); o.zero_grad()\n"
        "found = (loss.device, o.state_dict()['state'][0]['step'].item(), s.get_scale(), bool(torch.isnan(loss)))",
        "(device(type='cuda', index=0), 3.0, 65536.0, False)",
    ),
}

_LOAD = """import io
def load(tensor, place=None):
    file = io.BytesIO(); torch.save(tensor, file); file.seek(0)
    return torch.load(file, map_location=place)
"""

DEVICES: dict[str, tuple[str, str]] = {
    "to by number": ("found = (torch.ones(3).to(1)).device", CUDA_1),
    "to by number and dtype": ("found = (torch.ones(3).to(1, torch.half)).device", CUDA_1),
    "to device=": ("found = (torch.ones(3).to(device=1, dtype=torch.half)).device", CUDA_1),
    "to other=": ("found = (torch.ones(3).to(other=torch.ones(3, device=1))).device", CUDA_1),
    "to a device by number": ("found = (torch.ones(3).to(torch.device(1))).device", CUDA_1),
    "to a device by keyword": ("found = (torch.ones(3).to(torch.device(device=1))).device", CUDA_1),
    "to a device of two words": ("found = (torch.ones(3).to(torch.device(type='cuda', index=1))).device", CUDA_1),
    "cuda by number": ("found = (torch.ones(3).cuda(1, non_blocking=True)).device", CUDA_1),
    "cuda by keyword": ("found = (torch.ones(3).cuda(device='cuda:1')).device", CUDA_1),
    "to a type": ("found = (torch.ones(3).type(torch.cuda.HalfTensor)).device", "cuda:0"),
    "to the accelerator": ("found = (torch.ones(3).to(torch.accelerator.current_accelerator())).device", "cuda:0"),
    "made by number": ("found = (torch.zeros(3, device=1)).device", CUDA_1),
    "like another": ("found = (torch.zeros_like(torch.ones(3), device=1)).device", CUDA_1),
    "new_zeros": ("found = (torch.ones(3).new_zeros(3, device=1)).device", CUDA_1),
    "new_tensor": ("found = (torch.ones(3, device=1).new_tensor([1.0])).device", CUDA_1),
    "new": ("found = (torch.ones(3, device=1).new(3)).device", CUDA_1),
    "of a CUDA type": ("found = (torch.cuda.FloatTensor(3)).device", "cuda:0"),
    "one_hot": ("found = (F.one_hot(torch.tensor([1], device=1))).device", CUDA_1),
    "sparse": ("found = (torch.sparse_coo_tensor([[0]], [1.0], (2,), device='cuda:1')).device", CUDA_1),
    "module to device=": ("found = (nn.Linear(3, 3).to(device=1, dtype=torch.half).weight).device", CUDA_1),
    "module to number and dtype": ("found = (nn.Linear(3, 3).to(1, torch.half, True).weight).device", CUDA_1),
    "module to tensor": ("found = (nn.Linear(3, 3).to(torch.ones(3, device=1)).weight).device", CUDA_1),
    "module to tensor=": ("found = (nn.Linear(3, 3).to(tensor=torch.ones(3, device=1)).weight).device", CUDA_1),
    "module to memory format": (
        "found = (nn.Conv2d(1, 1, 1).to(device=1, memory_format=torch.channels_last).weight).device",
        CUDA_1,
    ),
    "module stays": ("found = (nn.Linear(3, 3).to(1).to(torch.half).weight).device", CUDA_1),
    "module cuda": ("found = (nn.Linear(3, 3).cuda(device=1).weight).device", CUDA_1),
    "module made there": ("found = (nn.Linear(3, 3, device=1).weight).device", CUDA_1),
    "module to_empty": ("found = (nn.Linear(3, 3, device='meta').to_empty(device=1).weight).device", CUDA_1),
    "storage": ("found = (torch.ones(3, device=1).untyped_storage()).device", CUDA_1),
    "storage moved": ("found = (torch.ones(3).untyped_storage().cuda(1)).device", CUDA_1),
    "loaded where it was": (f"{_LOAD}found = (load(torch.ones(3, device=1))).device", CUDA_1),
    "loaded by dict": (f"{_LOAD}found = (load(torch.ones(3, device=0), {{'cuda:0': 'cuda:1'}})).device", CUDA_1),
    "loaded by a dict without it": (
        f"{_LOAD}found = (load(torch.ones(3, device=1), {{'cpu': 'cuda:0'}})).device",
        CUDA_1,
    ),
    "loaded by a function": (
        f"{_LOAD}found = (load(torch.ones(3), lambda storage, place: storage.cuda(1))).device",
        CUDA_1,
    ),
    "loaded by a function without answer": (
        f"{_LOAD}found = (load(torch.ones(3, device=1), lambda storage, place: None)).device",
        CUDA_1,
    ),
    "loaded to the CPU": (f"{_LOAD}found = (load(torch.ones(3, device=1), 'cpu')).device", "cpu"),
    "loaded to the CPU by a function": (
        f"{_LOAD}found = (load(torch.ones(3, device=1), lambda storage, place: storage)).device",
        "cpu",
    ),
    "a generator's": ("found = (torch.Generator(device='cuda')).device", "cuda:0"),
    "a stream's": ("found = (torch.cuda.Stream(device=1)).device", CUDA_1),
    "a stream's attributes": (
        "s, e = torch.cuda.Stream(device=1), torch.cuda.Event()\n"
        "named = [(one, name, getattr(real, name)) for one, real in zip((s, e), REAL) for name in dir(real)]\n"
        "wrong = [name for one, name, real in named\n"
        "    if not name.startswith('__') and callable(getattr(one, name)) is not callable(real)]\n"
        "found = (wrong, s.device_index, s.device_type)",
        "([], 1, 1)",
    ),
    "with a device": ("with torch.device('cuda:1'):\n    found = torch.tensor([1.0]).device", CUDA_1),
    "with the current GPU": ("with torch.cuda.device('cuda:1'):\n    found = torch.ones(3).cuda().device", CUDA_1),
    "with the GPU of a tensor": (
        "with torch.cuda.device_of(torch.ones(3, device=1)):\n    found = torch.ones(3).cuda().device",
        CUDA_1,
    ),
    "with the accelerator's number": (
        "with torch.accelerator.device_index(1):\n    found = torch.ones(3).cuda().device",
        CUDA_1,
    ),
    "current by number": (
        "torch.cuda.set_device(1); found = torch.ones(3).cuda().device; torch.cuda.set_device(0)",
        CUDA_1,
    ),
    "current by name": (
        "torch.cuda.set_device('cuda:1'); found = torch.ones(3).cuda().device; torch.cuda.set_device(0)",
        CUDA_1,
    ),
    "current by device": (
        "torch.cuda.set_device(torch.device('cuda:1')); found = torch.ones(3).cuda().device; torch.cuda.set_device(0)",
        CUDA_1,
    ),
    "default": (
        "torch.set_default_device('cuda')\n"
        "try:\n    found = (torch.tensor([1.0]).device.index, torch.get_default_device().index)\n"
        "finally:\n    torch.set_default_device(None)",
        "(0, 0)",
    ),
    "default type": (
        "torch.set_default_tensor_type('torch.cuda.FloatTensor')\n"
        "try:\n    found = torch.zeros(3).device\nfinally:\n    torch.set_default_tensor_type(torch.FloatTensor)",
        "cuda:0",
    ),
    "of a CUDA type, or not": (
        "x, kind = torch.ones(3), torch.cuda.FloatTensor\n"
        "found = [isinstance(one, kind) for one in (x, x.cuda(), x.cuda().half())]",
        "[False, True, False]",
    ),
    "number of the GPU": (
        "found = (torch.get_device(torch.ones(3, device=1)), torch.get_device(torch.ones(3)))",
        "(1, -1)",
    ),
    "pinned is a copy": (
        "x = torch.ones(3); y = x.pin_memory(); found = (x.is_pinned(), y.is_pinned(), y is x, y.pin_memory() is y)",
        "(False, True, False, True)",
    ),
    "copied to the CPU": ("x = torch.ones(3); x.copy_(torch.ones(3, device=1)); found = x.device", "cpu"),
}
"""Each way in which torch names a device, and where the result is."""


WITHOUT_MEMORY: dict[str, tuple[str, str]] = {
    "large": (
        "found = (torch.empty(1 << 20, 1 << 20).cuda() @ torch.empty(1 << 20, 8)).shape",
        "torch.Size([1048576, 8])",
    ),
    "whole numbers are real": ("found = torch.bincount(torch.tensor([1, 1, 2])).tolist()", "[0, 2, 1]"),
    "a number": ("found = torch.randn(99).mean().item()", "1.0"),
    "printed": ("found = f'{torch.randn(99).mean():.2f}'", "1.00"),
    "not a number": ("found = bool(torch.isnan(torch.randn(99)).any())", "False"),
    "chosen experts": (
        "e = torch.randn(64, 8).topk(2).indices; found = torch.bincount(e.flatten(), minlength=8).sum().item()",
        "128",
    ),
    "masked": ("x = torch.randn(99, 3); found = x[torch.arange(99) < 40].shape", "torch.Size([40, 3])"),
    "few elements": ("found = (torch.tensor([1.0, 2.0]) * 2).tolist()", "[2.0, 4.0]"),
    "convolution": ("found = nn.Conv2d(3, 8, 3)(torch.randn(2, 3, 9, 9)).shape", "torch.Size([2, 8, 7, 7])"),
    "bounded draws": (
        "w = nn.Parameter(torch.empty(30, 30)); found = nn.init.trunc_normal_(w, std=0.02, a=-0.04, b=0.04) is w",
        "True",
    ),
    "the gradient of a sum": (
        "x = torch.zeros(1 << 20, 1 << 20, requires_grad=True); x.sum().backward(); found = (x.grad * 2).shape",
        "torch.Size([1048576, 1048576])",
    ),
    "too many to guess": (
        "try:\n    torch.empty(1 << 30).nonzero()\nexcept RuntimeError as error:\n    found = '--fake-tensors' in str(error)",  # noqa: E501
        "True",
    ),
}


def outcomes(mode: str, snippets: dict[str, tuple[str, str]], folder: Path) -> dict[str, Any]:
    """What each snippet finds, all in one process."""
    given = json.dumps({name: snippet for name, (snippet, _) in snippets.items()})
    program = folder / "program.py"
    program.write_text(RUNNER)
    command = [sys.executable, str(program), mode]
    done = subprocess.run(command, input=given, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("mode", ["real", "fake"])
def test_a_program_finds_cuda(mode: str, tmp_path: Path) -> None:
    found = outcomes(mode, SNIPPETS, tmp_path)
    assert found == {name: expected for name, (_, expected) in SNIPPETS.items()}


@pytest.mark.parametrize("mode", ["real", "fake"])
def test_every_way_to_name_a_device(mode: str, tmp_path: Path) -> None:
    assert outcomes(mode, DEVICES, tmp_path) == {name: result for name, (_, result) in DEVICES.items()}


def test_a_program_goes_on_without_memory(tmp_path: Path) -> None:
    found = outcomes("fake", WITHOUT_MEMORY, tmp_path)
    assert found == {name: expected for name, (_, expected) in WITHOUT_MEMORY.items()}
