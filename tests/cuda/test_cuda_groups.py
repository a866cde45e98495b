"""Programs with CUDA graphs, and with groups of every making, on torch's own NCCL groups over the double.

What passes here ran on a test double of CUDA and NCCL: it shows what torch and simcoll do, and is no result of a GPU.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.cuda_double.ranks import Ended, interpreter, run_ranks

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]

HEAD = """
import os
import torch
import torch.distributed as dist
import simcoll
simcoll.enable(os.environ["MODE"])
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
device = torch.device("cuda", rank)
torch.cuda.set_device(device)
def summed(group=None):
    tensor = torch.ones(2, device=device)
    dist.all_reduce(tensor, group=group)
    torch.cuda.synchronize()
    return tensor.tolist()[0]
"""

GRAPH = """
dist.init_process_group("nccl")
tensor, other = torch.ones(4, device=device), torch.zeros(2, device=device)
assert summed() == size
with torch.cuda.graph(graph := torch.cuda.CUDAGraph()):
    dist.all_reduce(tensor)
    dist.broadcast(other, 0, async_op=True).wait()
torch.cuda.synchronize()
captured = tensor.tolist()
"""

REPLAYS = """
for _ in range(3):
    graph.replay()
torch.cuda.synchronize()
assert (captured, tensor.tolist()) == ([1.0] * 4, [8.0] * 4), (captured, tensor)
assert summed() == size
dist.destroy_process_group()
print("ok")
"""

ONCE_LESS = """
for _ in range(2):
    graph.replay()
try:
    graph.replay() if rank == 0 else dist.barrier()
except simcoll.CollectiveMismatchError as error:
    assert "OpType=ALLREDUCE" in str(error) and "OpType=BARRIER" in str(error), str(error)
    torch.cuda.synchronize()
    assert tensor.tolist() == [4.0] * 4
    assert summed() == size
    print("ok")
dist.destroy_process_group()
"""

GROUPS = """
dist.init_process_group("nccl", device_id=device)
assert summed() == size
halves = dist.new_group([0, 1]), dist.new_group([0, 2])
assert [summed(one) for one in halves if dist.get_rank(one) >= 0] == [2.0] * (2 - (rank > 0))
own = dist.new_group([rank], use_local_synchronization=True, group_desc="own", device_id=device)
assert summed(own) == 1.0
if hasattr(dist, "split_group"):
    split = dist.split_group(split_ranks=[[0, 1], [2]])
    assert dist.get_process_group_ranks(split) == ([0, 1] if rank < 2 else [2]) and summed(split) == split.size()
work = dist.all_reduce(torch.ones(1, device=device), async_op=True)
"""

SHRUNK = """
work.wait()
torch.cuda.synchronize()
if rank != 1:
    left = dist.shrink_group([1])
    assert dist.get_process_group_ranks(left) == [0, 2] and summed(left) == summed() == 2.0
    members = left._global_ranks()
    assert members == (0, 2), members
print("ok")
os._exit(0)
"""

ABORTED = """
dist.distributed_c10d._abort_process_group()
print("ok")
"""

DESTROYED = """
dist.destroy_process_group()
print("ok")
"""

TRAINING = """
dist.init_process_group("nccl", device_id=device)
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
import torch.distributed._functional_collectives as functional
class Scale(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.bias = (torch.nn.Parameter(torch.ones(8, device=device)) for _ in range(2))
        self.register_buffer("seen", torch.zeros(4, device=device))
    def forward(self, given):
        return given * self.weight + self.bias
def trained(model):
    for _ in range(2):
        model(torch.ones(8, device=device)).sum().backward()
    torch.cuda.synchronize()
for options in ({}, {"static_graph": True}, {"find_unused_parameters": True}):
    trained(DistributedDataParallel(Scale(), device_ids=[rank], **options))
hooked = DistributedDataParallel(Scale(), device_ids=[rank])
hooked.register_comm_hook(None, default_hooks.allreduce_hook)
trained(hooked)
for allocates in (False, True):
    model = Scale()
    fully_shard(model)
    if allocates and hasattr(model, "set_allocate_memory_from_process_group_for_comm"):
        model.set_allocate_memory_from_process_group_for_comm(True)
    trained(model)
def reduced(given):
    return functional.all_reduce(given * 2, "sum", dist.group.WORLD) + 1
for backend in ("eager", "aot_eager"):
    torch.compile(reduced, backend=backend)(torch.ones(4, device=device))
    torch._dynamo.reset()
torch.cuda.synchronize()
dist.destroy_process_group()
print("ok")
"""


def ran(program: str, folder: Path, size: int, mode: str) -> list[Ended]:
    """How a program ended on ranks that find this simcoll beside it."""
    interpreter()
    package = folder / "simcoll"
    shutil.copytree(ROOT / "simcoll", package)
    for part in ("backends", "reports", "verifier"):
        shutil.copytree(ROOT / part, package / part)
    return list(run_ranks(HEAD + program, folder, size, SIMCOLL_OUT=str(folder / "boxes"), MODE=mode))


def succeed(ended: list[Ended]) -> None:
    for rank, one in enumerate(ended):
        assert one.status == 0, f"rank {rank}:\n{one.out}{one.err}"
        assert "ok" in one.out, f"rank {rank}:\n{one.out}{one.err}"


@pytest.mark.parametrize("mode", ["record", "check", "detail"])
def test_a_graph_that_is_captured_and_replayed_is_silent(tmp_path: Path, mode: str) -> None:
    succeed(ran(GRAPH + REPLAYS, tmp_path, 2, mode))

    from simcoll.blackbox import read_black_box
    from simcoll.blackbox.format import REPLAYED

    box = read_black_box(tmp_path / "boxes/rank00000.simcoll")
    assert [int(flags) & REPLAYED for flags in box.slots["flags"]] == [0, *[REPLAYED] * 6, 0]
    assert len(box.captured) == 2


def test_a_rank_that_replays_once_less_is_found_before_the_launch(tmp_path: Path) -> None:
    succeed(ran(GRAPH + ONCE_LESS, tmp_path, 2, "detail"))


@pytest.mark.parametrize("end", [DESTROYED, SHRUNK, ABORTED], ids=["destroyed", "shrunk", "aborted"])
@pytest.mark.parametrize("mode", ["record", "detail"])
def test_groups_of_every_making_work(tmp_path: Path, mode: str, end: str) -> None:
    succeed(ran(GROUPS + end, tmp_path, 3, mode))


def test_training_on_nccl_is_silent(tmp_path: Path) -> None:
    succeed(ran(TRAINING, tmp_path, 2, "detail"))
