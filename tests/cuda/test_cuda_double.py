"""The test double of CUDA and NCCL does what the real ones do, as far as ProcessGroupNCCL and its programs see it."""

from __future__ import annotations

import pickletools
from pathlib import Path

import pytest

from tests.cuda_double.ranks import Ended, run_ranks

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

HEAD = """
import os, sys, threading
from datetime import timedelta
import torch
import torch.distributed as dist
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
device = torch.device("cuda", rank)
torch.cuda.set_device(device)
def full(value, *shape, dtype=torch.float32):
    return torch.full(shape or (3,), value, dtype=dtype, device=device)
def same(got, *wanted):
    assert got.flatten().tolist() == list(wanted), (rank, got, wanted)
def start(seconds=120, **options):
    dist.init_process_group("nccl", timeout=timedelta(seconds=seconds), **options)
    return dist.distributed_c10d._get_default_store()
"""


def succeed(ended: list[Ended]) -> None:
    for rank, one in enumerate(ended):
        assert one.status == 0, f"rank {rank}:\n{one.out}{one.err}"
        assert "ok" in one.out


COLLECTIVES = """
store = start()
for dtype in "float32 float64 float16 bfloat16 int8 uint8 int32 int64".split():
    dtype = getattr(torch, dtype)
    mine = full(rank + 1, dtype=dtype)
    dist.all_reduce(mine)
    same(mine, *[6] * 3)
for operator, result in (("PRODUCT", 6), ("MAX", 3), ("MIN", 1), ("AVG", 2)):
    mine = full(rank + 1)
    dist.all_reduce(mine, op=getattr(dist.ReduceOp, operator))
    same(mine, *[result] * 3)
mine = full(rank + 1)
dist.all_reduce(mine, op=dist._make_nccl_premul_sum(2.0))
same(mine, 12, 12, 12)
mine = full(rank + 1)
dist.reduce(mine, 2)
same(mine, *[6 if rank == 2 else rank + 1] * 3)
mine = full(rank)
dist.broadcast(mine, 1)
same(mine, 1, 1, 1)
everyone = full(0, size)
dist.all_gather_into_tensor(everyone, full(rank, 1))
same(everyone, 0, 1, 2)
parts = [full(0, 2) for _ in range(size)]
dist.all_gather(parts, full(rank, 2))
same(torch.stack(parts), 0, 0, 1, 1, 2, 2)
mine = full(0, 2)
dist.reduce_scatter_tensor(mine, torch.arange(6.0, device=device))
same(mine, 6 * rank, 6 * rank + 3)
received = full(0, size)
dist.all_to_all_single(received, torch.arange(3.0, device=device) + 10 * rank)
same(received, rank, 10 + rank, 20 + rank)
gathered = [full(0, 1) for _ in range(size)] if rank == 1 else None
dist.gather(full(rank, 1), gathered, 1)
assert rank != 1 or [one.item() for one in gathered] == [0, 1, 2]
mine = full(0, 1)
dist.scatter(mine, [full(7 + to, 1) for to in range(size)] if rank == 0 else None, 0)
same(mine, 7 + rank)
objects = [None] * size
dist.all_gather_object(objects, {"rank": rank})
assert objects == [{"rank": 0}, {"rank": 1}, {"rank": 2}]
if rank == 0:
    dist.send(full(5, 1), 2)
if rank == 2:
    mine = full(0, 1)
    dist.recv(mine, 0)
    same(mine, 5)
right, left, mine = (rank + 1) % size, (rank - 1) % size, full(0, 1)
works = dist.batch_isend_irecv([dist.P2POp(dist.isend, full(rank, 1), right), dist.P2POp(dist.irecv, mine, left)])
[work.wait() for work in works]
same(mine, left)
several = [full(rank + step, 1) for step in range(3)]
with dist._coalescing_manager(device=device, async_ops=True) as together:
    for one in several:
        dist.all_reduce(one)
together.wait()
same(torch.cat(several), 3, 6, 9)
dist.barrier()
dist.destroy_process_group()
print("ok")
"""


def test_collectives_have_their_results(tmp_path: Path) -> None:
    succeed(run_ranks(HEAD + COLLECTIVES, tmp_path, size=3))


GROUPS = """
store = start(device_id=device)
two = dist.split_group(split_ranks=[[0, 1], [2]])
mine = full(rank + 1, 1)
if rank < 2:
    dist.all_reduce(mine, group=two)
same(mine, 3)
new = dist.new_group([0, 2])
mine = full(rank + 1, 1)
if rank != 1:
    dist.all_reduce(mine, group=new)
same(mine, 2 if rank == 1 else 4)
with dist._time_estimator(device=device) as estimate:
    dist.all_reduce(full(1, 1_000_000))
assert abs(estimate.estimated_time - (10 + 4 / 3 * 4e6 / 100e9 * 1e6)) < 1, estimate.estimated_time
torch.cuda.synchronize()
if rank != 2:
    fewer = dist.shrink_group([2])
    mine = full(rank + 1, 1)
    dist.all_reduce(mine, group=fewer)
    same(mine, 3)
    dist.destroy_process_group()
print("ok", flush=True)
os._exit(0)
"""


def test_groups_are_split_shrunk_and_estimated(tmp_path: Path) -> None:
    succeed(run_ranks(HEAD + GROUPS, tmp_path, size=3))


ASYNCHRONOUS = """
store = start()
mine = full(rank + 1)
if rank == 1:
    store.wait(["the others went on"])
work = dist.all_reduce(mine, async_op=True)
after = torch.cuda.Event()
work.wait()
mine *= 2
after.record()
if rank == 0:
    assert not work.is_completed() and not after.query()
    store.set("the others went on", "1")
after.synchronize()
assert work.is_completed()
same(mine, 6, 6, 6)
before, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
big = full(1, 1_000_000)
before.record()
dist.all_reduce(big)
end.record()
end.synchronize()
assert before.elapsed_time(end) >= 4, before.elapsed_time(end)
begin = torch.cuda.Event(enable_timing=True)
begin.record()
torch.cuda._sleep(5_000_000)
end.record()
end.synchronize()
assert begin.elapsed_time(end) >= 5
dist.destroy_process_group()
print("ok")
"""


def test_what_the_host_finished_the_device_has_not(tmp_path: Path) -> None:
    succeed(run_ranks(HEAD + ASYNCHRONOUS, tmp_path, SIMCOLL_DOUBLE_BANDWIDTH="1e9"))


GRAPHS = """
store = start()
mine = full(1, 2)
dist.all_reduce(mine)
graph, mine = torch.cuda.CUDAGraph(), full(1, 2)
torch.cuda.synchronize()
with torch.cuda.graph(graph):
    mine += 1
    dist.all_reduce(mine)
same(mine, 1, 1)
graph.replay()
graph.replay()
same(mine, 10, 10)
seen, event = [], torch.cuda.Event()
event.record()
def ask():
    try:
        event.query()
    except RuntimeError as error:
        seen.append(str(error))
spoiled = torch.cuda.CUDAGraph()
try:
    with torch.cuda.graph(spoiled):
        mine += 1
        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()
except RuntimeError as error:
    seen.append(str(error))
assert "not permitted when stream is capturing" in seen[0] and "previous error during capture" in seen[1], seen
print("ok", flush=True)
os._exit(0)
"""


def test_graphs_are_captured_replayed_and_spoiled(tmp_path: Path) -> None:
    succeed(run_ranks(HEAD + GRAPHS, tmp_path))


TRAINING = """
import copy
from torch.distributed.fsdp import fully_shard
store = start(device_id=device)
torch.manual_seed(0)
alone = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4))
batch = torch.randn(4 * size, 8)
mine = batch[4 * rank : 4 * rank + 4].to(device)
alone(batch).square().mean().backward()
wanted = [parameter.grad for parameter in alone.parameters()]
replicated = torch.nn.parallel.DistributedDataParallel(copy.deepcopy(alone).to(device), device_ids=[rank])
replicated.zero_grad()
replicated(mine).square().mean().backward()
for parameter, gradient in zip(replicated.parameters(), wanted):
    torch.testing.assert_close(parameter.grad.cpu(), gradient)
sharded = copy.deepcopy(alone).to(device)
for layer in (sharded[0], sharded[2], sharded):
    fully_shard(layer)
sharded.zero_grad()
sharded(mine).square().mean().backward()
for parameter, gradient in zip(sharded.parameters(), wanted):
    torch.testing.assert_close(parameter.grad.full_tensor().cpu(), gradient)
with device:
    made_there = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 4))
    made_there(mine).sum().backward()
dist.destroy_process_group()
print("ok")
"""


def test_ddp_and_fsdp_give_the_gradients_of_one_process(tmp_path: Path) -> None:
    succeed(run_ranks(HEAD + TRAINING, tmp_path))


ABSENT = """
store = start()
mine = full(1)
dist.all_reduce(mine)
torch.cuda.synchronize()
dist.distributed_c10d._set_pg_timeout(timedelta(seconds=5))
if rank == 1:
    store.wait(["never"], timedelta(seconds=60))
dist.all_reduce(mine)
print("the host goes on", flush=True)
torch.cuda.synchronize()
"""


def test_the_watchdog_ends_a_rank_that_waits_for_one_that_never_comes(tmp_path: Path) -> None:
    dump = str(tmp_path / "dump_")
    waiting, _ = run_ranks(HEAD + ABSENT, tmp_path, TORCH_FR_BUFFER_SIZE="100", TORCH_FR_DUMP_TEMP_FILE=dump)
    assert waiting.status == -6, waiting.err
    assert "the host goes on" in waiting.out
    assert "timed out" in waiting.err
    words = [str(argument) for _, argument, _ in pickletools.genops((tmp_path / "dump_0").read_bytes())]
    assert any("all_reduce" in word for word in words), words


ABORTED = """
store = start()
mine = full(1)
dist.all_reduce(mine)
torch.cuda.synchronize()
if rank == 0:
    work = dist.all_reduce(mine, async_op=True)
    assert not work.is_completed()
    dist.distributed_c10d._abort_process_group()
    torch.cuda.synchronize()
    store.set("over", "1")
else:
    store.wait(["over"])
print("ok", flush=True)
os._exit(0)
"""


def test_abort_frees_the_stream(tmp_path: Path) -> None:
    succeed(run_ranks(HEAD + ABORTED, tmp_path))


KILLED = """
store = start(seconds=60)
mine = full(1)
dist.all_reduce(mine)
torch.cuda.synchronize()
if rank == 1:
    os.kill(os.getpid(), 9)
dist.all_reduce(mine)
torch.cuda.synchronize()
"""


def test_a_lost_peer_is_a_remote_error_where_the_knob_says_so(tmp_path: Path) -> None:
    waiting, killed = run_ranks(HEAD + KILLED, tmp_path, SIMCOLL_DOUBLE_PEER_LOSS="1")
    assert killed.status == -9
    assert waiting.status == -6, waiting.err
    assert "remote process exited" in waiting.err


FAULTED = """
store = start()
mine = full(1)
dist.all_reduce(mine)
torch.cuda.synchronize()
for again in range(2):
    try:
        dist.all_reduce(mine)
        torch.cuda.synchronize()
        assert rank == 0, "no fault"
    except RuntimeError as error:
        assert rank == 1 and "an illegal memory access was encountered" in str(error), error
    if rank == 0:
        break
print("ok", flush=True)
os._exit(0)
"""


def test_an_illegal_memory_access_stays(tmp_path: Path) -> None:
    lonely = FAULTED.replace("        dist.all_reduce(mine)\n", "        if rank == 1: dist.all_reduce(mine)\n")
    succeed(run_ranks(HEAD + lonely, tmp_path, knobs={1: {"SIMCOLL_DOUBLE_FAULT": "2"}}))


def test_what_is_not_there_says_so(tmp_path: Path) -> None:
    program = HEAD + "import ctypes\nprint('ok', ctypes.CDLL(None).cudaCreateTextureObject())\n"
    ended = run_ranks(program, tmp_path, size=1, SIMCOLL_DOUBLE_TRACE="1")
    succeed(ended)
    assert "ok 801" in ended[0].out
    assert "cudaCreateTextureObject is not supported" in ended[0].err
