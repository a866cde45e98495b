"""Times of calls on torch's own ProcessGroupNCCL, both of them, over the test double: order and memory, no figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from simcoll.blackbox import BlackBox, read_black_box
from simcoll.core.record import Record, State
from simcoll.verifier.postmortem import judge
from tests.cuda_double.ranks import run_ranks

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
HEAD = """
import os, sys, time
import torch
import torch.distributed as dist
import simcoll
simcoll.enable(mode=os.environ["MODE"], out=os.environ["OUT"])
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
device = torch.device("cuda", rank)
torch.cuda.set_device(device)
dist.init_process_group("nccl")
def full(count=1 << 16):
    return torch.full((count,), 1.0, device=device)
"""


@pytest.fixture(params=["1", "0"], ids=["nccl2", "nccl"])
def implementation(request: pytest.FixtureRequest) -> str:
    """Which of torch's two implementations the name nccl stands for."""
    return str(request.param)


def run(program: str, folder: Path, implementation: str, mode: str = "record", **shared: str) -> list[BlackBox]:
    """Both ranks' black boxes."""
    package = folder / "lib" / "simcoll"
    package.mkdir(parents=True)
    for path in [*(ROOT / "simcoll").iterdir(), *(ROOT / name for name in ("backends", "reports", "verifier"))]:
        (package / path.name).symlink_to(path)
    shared |= {"PYTHONPATH": str(package.parent), "OUT": str(folder / "out"), "MODE": mode}
    ended = run_ranks(HEAD + program, folder, TORCH_DIST_USE_NCCL2=implementation, **shared)
    for rank, one in enumerate(ended):
        assert one.status == 0, f"rank {rank}:\n{one.out}{one.err}"
        assert "Work::synchronize" not in one.err
    boxes = [read_black_box(folder / "out" / f"rank{rank:05d}.simcoll") for rank in range(len(ended))]
    # Some programs let a Work go on purpose.
    assert {finding.code for finding in judge(boxes).findings} <= {"SC501"}
    return boxes


def records(box: BlackBox) -> list[Record]:
    return [box.record(row) for row in range(len(box.slots))]


EVERYTHING = """
x = full()
dist.all_reduce(x)
works = [dist.all_reduce(x, async_op=True) for _ in range(3)]
for work in works:
    work.wait()
dist.all_gather_into_tensor(full(size << 16), x, async_op=True).wait()
dist.all_gather([full() for _ in range(size)], x, async_op=True).wait()
dist.send(x, 1) if rank == 0 else dist.recv(x, 0)
both = [dist.P2POp(dist.isend, x, 1 - rank), dist.P2POp(dist.irecv, full(), 1 - rank)]
for work in dist.batch_isend_irecv(both):
    work.wait()
dist.barrier()
dist.all_reduce(x)
dist.destroy_process_group()
"""


@pytest.mark.parametrize("mode", ["record", "check", "detail"])
def test_every_kind_of_call_has_ended_on_the_device(tmp_path: Path, implementation: str, mode: str) -> None:
    for box in run(EVERYTHING, tmp_path, implementation, mode):
        made = records(box)
        assert {record.state for record in made} == {State.COMPLETED}
        untold = {record.call.spelling for record in made if not record.on_device}
        # The list's own memory is its Work's alone, where there is such memory; a barrier blocks the host.
        assert untold == ({"barrier"} if implementation == "1" else {"barrier", "allgather"})
        timed = [record for record in made if record.on_device]
        assert all(record.scheduled_ns <= record.started_ns < record.finished_ns for record in timed)
        section = [record for record in made if record.p2p_sequence > 1]
        # Each is put off behind its own making, should the clocks be apart.
        assert len({record.finished_ns - record.started_ns for record in section}) == 1


PROVED_LATER = """
dist.all_reduce(full())
torch.cuda.synchronize()
time.sleep(0.5 * rank)
work = dist.all_reduce(full(), async_op=True)
torch.cuda._sleep(1_500_000_000)
work.wait()
dist.all_reduce(full())
dist.destroy_process_group()
"""


def test_a_call_that_is_proved_first_begins_before_what_the_program_queues_later(
    tmp_path: Path, implementation: str
) -> None:
    for box in run(PROVED_LATER, tmp_path, implementation, "detail"):
        _, overlapping, _ = (record for record in records(box) if record.on_device)
        assert overlapping.finished_ns - overlapping.started_ns < 1e9


BEHIND = """
dist.all_reduce(full())
torch.cuda.synchronize()
if rank == 1:
    torch.cuda._sleep(400_000_000)
begin = time.monotonic()
dist.all_reduce(full())
dist.all_reduce(full(), async_op=True).wait()
torch.cuda._sleep(100_000_000)
assert time.monotonic() - begin < 0.3, "the host waited"
torch.cuda.synchronize()
dist.destroy_process_group()
"""


def test_the_host_goes_on_and_a_late_device_is_inside_for_the_shortest_time(
    tmp_path: Path, implementation: str
) -> None:
    early, late = (records(box)[1] for box in run(BEHIND, tmp_path, implementation))
    assert early.finished_ns - early.started_ns > 0.2e9
    assert late.finished_ns - late.started_ns < 0.2e9
    assert late.started_ns - late.scheduled_ns > 0.2e9


MEMORY = """
dist.all_reduce(full())
torch.cuda.synchronize()
torch.cuda._sleep(300_000_000)
before = torch.cuda.memory_allocated()
works = [dist.all_reduce(full(), async_op=True) for _ in range(4)]
assert torch.cuda.memory_allocated() - before >= 4 << 18, "freed while the device may use it"
for work in works:
    work.wait()
del work, works
assert torch.cuda.memory_allocated() == before, "held though the program has waited"
dist.all_reduce(full(), async_op=True)
assert torch.cuda.memory_allocated() - before >= 1 << 18, "freed while the device may use it"
torch.cuda.synchronize()
time.sleep(0.5)
dist.all_reduce(full())
torch.cuda.synchronize()
assert torch.cuda.memory_allocated() - before <= 1 << 18, "held though the device has ended it"
dist.destroy_process_group()
"""


def test_tensors_are_held_as_long_as_torch_holds_them(tmp_path: Path, implementation: str) -> None:
    run(MEMORY, tmp_path, implementation)


LEFT = """
dist.all_reduce(full())
torch.cuda._sleep(100_000_000)
dist.all_reduce(full(), async_op=True)
"""


def test_a_program_that_just_ends_has_its_last_calls_told(tmp_path: Path, implementation: str) -> None:
    for box in run(LEFT, tmp_path, implementation):
        assert all(record.on_device and record.state is State.COMPLETED for record in records(box))


def test_each_second_call_is_timed_on_all_ranks_alike(tmp_path: Path, implementation: str) -> None:
    program = "for _ in range(6):\n    dist.all_reduce(full())\ndist.destroy_process_group()\n"
    for box in run(program, tmp_path, implementation, SIMCOLL_TIMES_EVERY="2"):
        made = records(box)
        assert [record.on_device for record in made] == [False, True] * 3
        assert {record.state for record in made} == {State.COMPLETED}
