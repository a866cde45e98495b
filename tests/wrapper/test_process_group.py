"""The group underneath torch.distributed: whoever looks at it sees what they saw without simcoll."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from simcoll.errors import CollectiveMismatchError

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402

from tests.support.calls import ones, summed  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.gloo]


def looks(rank: int) -> object:
    """What a program can ask about groups."""
    group = dist.group.WORLD
    assert isinstance(group, dist.ProcessGroup)
    half = dist.new_group([0, 1], timeout=timedelta(seconds=7), group_desc="half")
    dist.all_reduce(ones(2))
    dist.all_gather_object([None, None], rank)
    backend = group._get_backend(torch.device("cpu"))
    return {
        "backend": (dist.get_backend(), dist.get_backend(half), dist.get_backend_config()),
        "name": (group.group_name, group.group_desc, half.group_name, half.group_desc, group.name(), half.size()),
        "size": (group.size(), group.rank(), dist.get_process_group_ranks(half), dist.get_group_rank(half, 1)),
        "timeout": (backend.options._timeout, half._get_backend(torch.device("cpu")).options._timeout),
        "sequence": (group._get_sequence_number_for_group(), backend._get_sequence_number_for_group()),
        "types": (type(backend).__name__, group._device_types, group.bound_device_id, group._has_hooks()),
        "hashable": len({group: 1, dist.group.WORLD: 2}),
        "registered": dist.distributed_c10d._resolve_process_group(group.group_name) is group,
    }


def test_a_group_looks_as_it_does_without_simcoll(ranks: Any) -> None:
    plain = ranks(looks, mode=None)
    assert ranks(looks, mode="detail") == plain
    assert ranks(looks, mode="record") == plain


def test_the_timeout_that_is_set_later_counts(ranks: Any) -> None:
    def program(rank: int) -> object:
        group = dist.new_group(timeout=timedelta(seconds=30))
        dist.distributed_c10d._set_pg_timeout(timedelta(seconds=1), group)
        error = ranks.error_of(lambda: dist.all_reduce(ones(1), group=group)) if rank == 0 else None
        dist.barrier()
        return None if error is None else str(error).splitlines()[0]

    text, _ = ranks(program)
    assert "Ranks 1 failed to pass monitoredBarrier in 1000 ms" in text


def profiled(rank: int) -> object:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        dist.all_reduce(ones(2))
        dist.broadcast(ones(2), 0, async_op=True).wait()
        dist.barrier()
        dist.all_gather([ones(2), ones(2)], ones(2))
        dist.all_gather_into_tensor(ones(4), ones(2), async_op=True).wait()
        dist.barrier(async_op=True).wait()
    own = ("gloo:", "c10d::")
    return sorted(Counter(event.name for event in profile.events() if event.name.startswith(own)).items())


def test_a_profile_shows_the_same_events(ranks: Any) -> None:
    plain = ranks(profiled, mode=None)
    assert len(plain[0]) >= 8
    assert ranks(profiled) == plain


def futures(rank: int) -> object:
    tensor = ones(2)
    future = dist.all_reduce(tensor, async_op=True).get_future()
    doubled = future.then(lambda done: done.value()[0] * 2)
    return doubled.wait().tolist(), [value.tolist() for value in future.value()], future.done()


def test_futures_give_what_they_gave(ranks: Any) -> None:
    assert ranks(futures) == ranks(futures, mode=None) == [([4.0, 4.0], [[2.0, 2.0]], True)] * 2


def test_several_backends_in_one_group(ranks: Any) -> None:
    def program(rank: int) -> object:
        error = ranks.error_of(lambda: dist.all_reduce(ones(1 + rank)))
        return summed(), dist.get_backend_config(), type(error)

    expected = (2.0, "cpu:gloo", CollectiveMismatchError)
    assert ranks(program, backend="cpu:gloo") == [expected, expected]


def test_a_backend_without_peers_is_recorded_but_not_proved(ranks: Any) -> None:
    def program(rank: int) -> object:
        from torch.testing._internal.distributed.fake_pg import FakeStore

        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
        dist.all_reduce(ones(4))
        dist.all_gather_into_tensor(ones(16), ones(2))
        return dist.get_world_size()

    assert ranks(program, 1, backend=None) == [8]
    assert [record.call.op for record in ranks.records(0)] == ["all_reduce", "all_gather"]


def test_a_group_of_one_is_checked_against_itself(ranks: Any) -> None:
    def program(rank: int) -> object:
        wrong = ranks.error_of(lambda: dist.all_to_all_single(ones(3), ones(3), [2], [3]))
        return summed(), wrong is not None

    assert ranks(program, 1) == [(1.0, True)]


def test_groups_of_one_name_after_each_other_do_not_meet(ranks: Any) -> None:
    def program(rank: int) -> object:
        sums = []
        for attempt in range(3):
            sums.append(summed())
            if attempt == 1:
                ranks.error_of(lambda: dist.all_reduce(ones(1 + rank)))
            dist.destroy_process_group()
            # A fresh prefix: Gloo itself may meet the keys of a group of before under an old one.
            store = ranks.store(f"again {attempt}")
            dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=10))
        return sums, summed()

    assert ranks(program) == [([2.0] * 3, 2.0)] * 2


def test_members_are_recorded_as_global_ranks_in_group_order(ranks: Any) -> None:
    def program(rank: int) -> object:
        groups = [dist.new_group([2, 0]), dist.new_group([1, 2])]
        if rank in (0, 2):
            summed(groups[0])
        if rank in (1, 2):
            summed(groups[1])
        return None

    ranks(program, 3)
    assert [group.ranks for group in ranks.box(2).groups] == [(0, 1, 2), (0, 2), (1, 2)]
    assert [group.ranks for group in ranks.box(1).groups] == [(0, 1, 2), (1, 2)]


def test_a_split_group_is_recorded_and_proved(ranks: Any) -> None:
    def program(rank: int) -> object:
        from torch.distributed import _dist2 as dist2

        group = dist2.new_group("gloo", timedelta(seconds=10), "cpu")
        part = group.split_group([0, 1])
        error = ranks.error_of(lambda: part.allreduce(ones(1 + rank)).wait())
        part.allreduce(tensor := ones(1)).wait()
        return type(error), float(tensor)

    pytest.importorskip("torch.distributed._dist2")
    agent = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(ranks.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    assert ranks(program, backend=None, **agent) == [(CollectiveMismatchError, 2.0)] * 2


def coalesced(rank: int) -> object:
    many = [ones(1) * (place + 1) for place in range(3)]
    with dist._coalescing_manager():
        for tensor in many:
            dist.all_reduce(tensor)
    with dist._coalescing_manager(async_ops=True) as manager:
        for tensor in many:
            dist.all_reduce(tensor)
    manager.wait()
    outputs = [torch.zeros(2), torch.zeros(4)]
    with dist._coalescing_manager():
        for place, output in enumerate(outputs):
            dist.all_gather_into_tensor(output, ones(place + 1))
    return [float(tensor) for tensor in many], [output.tolist() for output in outputs]


def test_the_coalescing_manager(ranks: Any) -> None:
    assert ranks(coalesced) == ranks(coalesced, mode=None)
    assert [record.call.coalesced for record in ranks.records(0)] == [True, True, True]


def refused(call: Callable[[], object], rank: int, ranks: Any) -> object:
    error = ranks.error_of(call)
    return type(error), str(error).splitlines()[0]


def rejections(ranks: Any) -> Callable[[int], object]:
    return lambda rank: [
        refused(lambda: dist.group.WORLD.allreduce("text"), rank, ranks),
        refused(lambda: dist.group.WORLD.broadcast(ones(1), 0.5), rank, ranks),
        refused(lambda: dist.group.WORLD.allreduce([]), rank, ranks),
        refused(lambda: dist.all_reduce([ones(1)]), rank, ranks),
        refused(lambda: dist.all_gather([ones(1)], ones(2)), rank, ranks),
    ]


def test_what_torch_refuses_is_refused_by_torch(ranks: Any) -> None:
    plain, recorded = ranks(rejections(ranks), mode=None), ranks(rejections(ranks), mode="detail")
    for (kind, text), (recorded_kind, recorded_text) in zip(plain[0], recorded[0], strict=True):
        assert recorded_kind is kind, recorded_text
        assert recorded_text.split("0x")[0] == text.split("0x")[0]


def counted(rank: int) -> object:
    from torch.distributed.tensor.debug import CommDebugMode

    with CommDebugMode() as mode:
        dist.all_reduce(ones(2))
        dist.all_reduce(ones(2), async_op=True).wait()
        dist.all_gather_into_tensor(ones(4), ones(2), async_op=True).wait()
    return {str(op): count for op, count in mode.get_comm_counts().items()}


def test_a_dispatch_mode_sees_queued_calls_too(ranks: Any) -> None:
    plain = ranks(counted, mode=None)
    assert sum(plain[0].values()) == 3
    assert ranks(counted) == plain
