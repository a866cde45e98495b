"""``simcoll.time_estimator``: the calls of a torch program are priced and not made, whoever makes them."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.nn.parallel import DistributedDataParallel

import simcoll
from simcoll.estimator.time_estimator import TimeEstimator
from simcoll.wrapper.dispatch_mode import Dispatched, Wait, dispatched

pytestmark = pytest.mark.slow

WORLD = 16
MIB = 1 << 20


@pytest.fixture
def topology() -> simcoll.Topology:
    return simcoll.cluster(gpu="h100", nodes=2)


@pytest.fixture
def world() -> Iterator[None]:
    """This process is rank 0 of 16, and the others are not there: whatever is sent would come back unchanged."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=WORLD)
    yield
    dist.destroy_process_group()


def megabyte() -> torch.Tensor:
    return torch.ones(MIB // 4)


def failing_step() -> None:
    dist.barrier()
    raise RuntimeError("no batch for 3 ranks")


def priced(op: str, size: int, topology: simcoll.Topology, ranks: Sequence[int] = range(WORLD)) -> float:
    return simcoll.estimate(op, size, topology, ranks=ranks).seconds


@pytest.mark.usefixtures("world")
def test_a_call_costs_what_its_estimate_says(topology: simcoll.Topology) -> None:
    tensor = megabyte()
    with simcoll.time_estimator(topology) as estimator:
        dist.all_reduce(tensor)
    assert estimator.seconds == pytest.approx(priced("all_reduce", MIB, topology))
    assert estimator.estimated_time == pytest.approx(estimator.seconds * 1e6)
    assert tensor.eq(1).all()


@pytest.mark.usefixtures("world")
def test_asynchronous_calls_of_a_group_run_one_after_the_other(topology: simcoll.Topology) -> None:
    with simcoll.time_estimator(topology) as estimator:
        works = [dist.all_reduce(megabyte(), async_op=True) for _ in range(3)]
        for work in works:
            assert work is not None
            work.wait()
    assert estimator.seconds == pytest.approx(3 * priced("all_reduce", MIB, topology))


@pytest.mark.usefixtures("world")
def test_calls_that_nobody_waits_for_count(topology: simcoll.Topology) -> None:
    with simcoll.time_estimator(topology) as estimator:
        dist.all_reduce(megabyte(), async_op=True)
    assert estimator.seconds == pytest.approx(priced("all_reduce", MIB, topology))


@pytest.mark.usefixtures("world")
def test_groups_on_other_links_overlap(topology: simcoll.Topology) -> None:
    inside, across = dist.new_group(list(range(8))), dist.new_group([0, 8])
    with simcoll.time_estimator(topology) as estimator:
        works = [dist.all_reduce(megabyte(), group=group, async_op=True) for group in (inside, across)]
        for work in works:
            assert work is not None
            work.wait()
    alone = [priced("all_reduce", MIB, topology, ranks) for ranks in (range(8), [0, 8])]
    assert estimator.seconds == pytest.approx(max(alone))


@pytest.mark.usefixtures("world")
def test_a_coalesced_section_goes_as_one_call(topology: simcoll.Topology) -> None:
    with simcoll.time_estimator(topology) as estimator, dist._coalescing_manager():
        dist.all_reduce(megabyte())
        dist.all_reduce(megabyte())
    assert estimator.seconds == pytest.approx(priced("all_reduce", 2 * MIB, topology))


@pytest.mark.usefixtures("world")
def test_a_section_in_a_section_loses_no_call(topology: simcoll.Topology) -> None:
    device, other = torch.device("cpu"), dist.new_group([0, 8])
    with simcoll.time_estimator(topology) as estimator, dist._coalescing_manager(device=device):
        dist.all_reduce(megabyte())
        dist.isend(megabyte(), 1)
        with dist._coalescing_manager(group=other, device=device):
            dist.isend(megabyte(), 8, group=other)
    assert sorted(call.estimate.op for call in estimator.calls) == ["all_reduce", "send", "send"]


@pytest.mark.usefixtures("world")
def test_messages_in_both_directions_overlap(topology: simcoll.Topology) -> None:
    with simcoll.time_estimator(topology) as estimator:
        exchange = [dist.P2POp(dist.isend, megabyte(), 1), dist.P2POp(dist.irecv, megabyte(), 1)]
        for work in dist.batch_isend_irecv(exchange):
            work.wait()
    assert estimator.seconds == pytest.approx(priced("send", MIB, topology, [0, 1]))
    assert [call.estimate.op for call in estimator.calls] == ["send", "recv"]


@pytest.mark.usefixtures("world")
def test_a_message_and_a_collective_share_the_network(topology: simcoll.Topology) -> None:
    across, tensor = dist.new_group([0, 8]), torch.empty(256 * MIB // 4)
    with simcoll.time_estimator(topology) as estimator:
        dist.all_reduce(tensor, group=across, async_op=True)
        dist.isend(tensor, 8)
    alone = [priced("all_reduce", 256 * MIB, topology, [0, 8]), priced("send", 256 * MIB, topology, [0, 8])]
    assert max(alone) * 1.2 < estimator.seconds <= sum(alone) * 1.001


@pytest.mark.usefixtures("world")
def test_every_row_has_its_size(topology: simcoll.Topology) -> None:
    whole, part = torch.ones(WORLD * 4), torch.ones(4)
    parts = [part.clone() for _ in range(WORLD)]
    with simcoll.time_estimator(topology) as estimator, warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        dist.all_gather_into_tensor(whole, part)
        dist.all_gather(parts, part)
        dist.reduce_scatter_tensor(part, whole)
        dist.all_to_all_single(whole, whole.clone())
        dist.broadcast(part, 0)
        dist.reduce(part, 0)
        dist.gather(part, parts)
        dist.gather(part, None, dst=1)
        dist.scatter(part, parts)
        dist.barrier()
    named = [(call.estimate.op, call.estimate.bytes) for call in estimator.calls]
    assert named == [
        ("all_gather", 256),
        ("all_gather", 256),
        ("reduce_scatter", 256),
        ("all_to_all", 256),
        ("broadcast", 16),
        ("reduce", 16),
        ("gather", 256),
        ("gather", 256),
        ("scatter", 256),
        ("barrier", 0),
    ]


@pytest.mark.usefixtures("world")
def test_functional_collectives_are_priced_and_have_their_shapes(topology: simcoll.Topology) -> None:
    group = dist.group.WORLD
    with simcoll.time_estimator(topology) as estimator, warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        assert functional.all_reduce(torch.ones(4), "sum", group).shape == (4,)
        assert (functional.all_gather_tensor(torch.ones(4, 2), 0, group) + 1).shape == (64, 2)
        assert (functional.reduce_scatter_tensor(torch.ones(32), "sum", 0, group) + 1).shape == (2,)
        assert functional.all_to_all_single(torch.ones(16), None, None, group).shape == (16,)
        assert functional.broadcast(torch.ones(3), 0, group).shape == (3,)
    ops = [call.estimate.op for call in estimator.calls]
    assert ops == ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"]


@pytest.mark.usefixtures("world")
def test_a_result_that_is_computed_with_was_waited_for(topology: simcoll.Topology) -> None:
    inside, across = dist.new_group([0, 1]), dist.new_group([0, 8])
    with simcoll.time_estimator(topology) as estimator, warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        first = functional.all_reduce(megabyte(), "sum", inside)
        functional.all_reduce(first.view(512, -1) + 1, "sum", across)
    alone = [priced("all_reduce", MIB, topology, ranks) for ranks in ([0, 1], [0, 8])]
    assert estimator.seconds == pytest.approx(sum(alone))


@pytest.mark.usefixtures("world")
def test_what_a_dtensor_does_by_itself_is_priced(topology: simcoll.Topology) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Partial

    mesh = init_device_mesh("cpu", (2, 8), mesh_dim_names=("data", "tensor"))
    parts = DTensor.from_local(torch.ones(64, 64), mesh["tensor"], [Partial()])
    with simcoll.time_estimator(topology) as estimator:
        torch.relu(parts)
    assert [(call.estimate.op, call.estimate.ranks) for call in estimator.calls] == [("all_reduce", 8)]


@pytest.mark.usefixtures("world")
def test_fully_sharded_parameters_are_gathered_and_their_gradients_scattered(topology: simcoll.Topology) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = torch.nn.Linear(256, 256)
    fully_shard(model, mesh=init_device_mesh("cpu", (WORLD,)))
    with simcoll.time_estimator(topology) as estimator:
        model(torch.ones(2, 256)).sum().backward()
    size = 4 * (256 * 256 + 256)
    made = [(call.estimate.op, call.estimate.bytes) for call in estimator.calls]
    assert (made[0], made[-1]) == (("all_gather", size), ("reduce_scatter", size))


@pytest.mark.usefixtures("world")
def test_fake_tensors_will_do(topology: simcoll.Topology) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with simcoll.time_estimator(topology) as estimator, FakeTensorMode():
        dist.all_reduce(megabyte())
    assert estimator.seconds == pytest.approx(priced("all_reduce", MIB, topology))


@pytest.mark.usefixtures("world")
def test_of_a_message_the_sender_is_named_first() -> None:
    taken: list[Dispatched] = []

    def take(call: Dispatched) -> Wait:
        taken.append(call)
        return lambda: None

    with dispatched(take, lambda: None, lambda: lambda: None):
        dist.send(megabyte(), 8)
        dist.recv(megabyte(), 8)
    assert [(call.op, call.members) for call in taken] == [("send", (0, 8)), ("recv", (8, 0))]


@pytest.mark.usefixtures("world")
def test_to_look_at_the_time_changes_nothing(topology: simcoll.Topology) -> None:
    inside, across = dist.new_group(list(range(8))), dist.new_group([0, 8])
    alone = [priced("all_reduce", MIB, topology, ranks) for ranks in (range(8), [0, 8])]
    with simcoll.time_estimator(topology) as estimator:
        dist.all_reduce(megabyte(), group=inside, async_op=True)
        assert estimator.seconds == pytest.approx(alone[0])
        dist.all_reduce(megabyte(), group=across, async_op=True)
    assert estimator.seconds == pytest.approx(max(alone))
    assert [call.transfer.start for call in estimator.calls] == [0.0, 0.0]


@pytest.mark.usefixtures("world")
def test_a_block_in_a_block_takes_its_own_calls(topology: simcoll.Topology) -> None:
    with simcoll.time_estimator(topology) as outer:
        dist.all_reduce(megabyte())
        with pytest.raises(RuntimeError, match="3 ranks"), simcoll.time_estimator(topology) as inner:
            failing_step()
        dist.all_reduce(megabyte())
    assert [len(each.calls) for each in (outer, inner)] == [2, 1]


@pytest.mark.usefixtures("world")
def test_threads_have_blocks_of_their_own(topology: simcoll.Topology) -> None:
    """The first block to be entered is the first to be left: the other's coalesced section is still taken."""
    entered, left = threading.Event(), threading.Event()
    found: list[TimeEstimator] = []

    def second() -> None:
        with simcoll.time_estimator(topology) as estimator:
            entered.set()
            left.wait(10)
            with dist._coalescing_manager(device=torch.device("cpu")):
                dist.all_reduce(megabyte())
        found.append(estimator)

    before = dist.ProcessGroup._start_coalescing
    thread = threading.Thread(target=second)
    with simcoll.time_estimator(topology):
        thread.start()
        entered.wait(10)
    left.set()
    thread.join()
    assert len(found[0].calls) == 1
    assert dist.ProcessGroup._start_coalescing is before


@pytest.mark.usefixtures("world")
def test_a_gathered_object_is_this_ranks_own(topology: simcoll.Topology) -> None:
    found: list[object] = [None] * WORLD
    with simcoll.time_estimator(topology):
        dist.all_gather_object(found, {"rank": 0})
    assert found == [{"rank": 0}] * WORLD


@pytest.mark.usefixtures("world")
def test_the_reducer_of_ddp_is_priced(topology: simcoll.Topology) -> None:
    model = DistributedDataParallel(torch.nn.Linear(64, 64))
    with simcoll.time_estimator(topology) as estimator:
        model(torch.ones(2, 64)).sum().backward()
    assert [(call.estimate.op, call.estimate.bytes) for call in estimator.calls] == [("all_reduce", 4 * (64 * 64 + 64))]


@pytest.mark.usefixtures("world")
def test_a_topology_that_is_too_small_is_refused() -> None:
    small = simcoll.cluster(gpu="h100", nodes=1)
    with pytest.raises(simcoll.ConfigurationError, match="the topology has 8"), simcoll.time_estimator(small):
        dist.all_reduce(megabyte())


@pytest.mark.usefixtures("world")
def test_after_the_block_calls_are_made_again(topology: simcoll.Topology) -> None:
    with simcoll.time_estimator(topology) as estimator:
        pass
    dist.all_reduce(megabyte())
    assert (estimator.seconds, estimator.calls) == (0.0, ())


@pytest.mark.gloo
@pytest.mark.parametrize("mode", ["off", "record", "detail"])
def test_nothing_is_sent_and_nothing_recorded(mode: str, tmp_path: Path) -> None:
    """The other of two Gloo ranks makes no call: one that was sent, or proved, would hang."""
    program = """
import sys, torch, torch.distributed as dist, simcoll
rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method=sys.argv[2], rank=rank, world_size=2)
if rank == 0:
    with simcoll.time_estimator(simcoll.flat(2, 1e9, 1e-6)) as estimator:
        dist.all_reduce(torch.ones(4)); dist.barrier(); dist.send(torch.ones(2), 1); dist.monitored_barrier()
    assert len(estimator.calls) == 4 and estimator.seconds > 0
dist.barrier()
dist.destroy_process_group()
"""
    (tmp_path / "program.py").write_text(program)
    environment = {**os.environ, "SIMCOLL_MODE": mode, "SIMCOLL_OUT": str(tmp_path / "out")}
    store = f"file://{tmp_path}/store"
    ranks = [
        subprocess.Popen([sys.executable, "program.py", str(rank), store], env=environment, cwd=tmp_path)
        for rank in range(2)
    ]
    try:
        assert [rank.wait(60) for rank in ranks] == [0, 0]
    finally:
        for rank in ranks:
            rank.kill()
