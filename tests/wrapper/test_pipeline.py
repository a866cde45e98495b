"""When a call is proved and launched: every mismatch raises on every rank, and nothing waits that need not."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from typing import Any

import pytest

from simcoll.core.record import State
from simcoll.errors import CollectiveMismatchError, MissingRankError

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402

from tests.support.calls import ones  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.gloo]


def hasten(group: Any, seconds: float = 1) -> Any:
    """Give a group its timeout when it is there: making one may take longer on a busy machine."""
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=seconds), group)
    return group


def works() -> bool:
    """Whether the group still computes what it should."""
    tensor = ones(3)
    dist.all_reduce(tensor)
    return bool((tensor == dist.get_world_size()).all())


MISMATCHES = {
    "reduce_op": lambda rank: dist.all_reduce(ones(2), dist.ReduceOp.MAX if rank else dist.ReduceOp.SUM),
    "dtype": lambda rank: dist.all_reduce(ones(2, dtype=torch.float64 if rank else torch.float32)),
    "size": lambda rank: dist.all_reduce(ones(2 + rank)),
    "shape": lambda rank: dist.all_reduce(ones(2, 3) if rank else ones(3, 2)),
    "root": lambda rank: dist.broadcast(ones(2), src=rank),
    "op": lambda rank: dist.barrier() if rank else dist.all_reduce(ones(2)),
    "splits": lambda rank: dist.all_to_all_single(ones(4), ones(4), [1 + rank, 3 - rank], [2, 2]),
}


@pytest.mark.parametrize("kind", MISMATCHES)
def test_a_mismatch_raises_on_every_rank_before_anything_runs(ranks: Any, kind: str) -> None:
    def program(rank: int) -> object:
        error = ranks.error_of(lambda: MISMATCHES[kind](rank))
        return error, works()

    for error, usable in ranks(program):
        assert type(error) is CollectiveMismatchError
        assert str(error).startswith("Detected mismatch between collectives on ranks. Rank ")
        assert "CollectiveFingerPrint(SequenceNumber=1, OpType=" in str(error)
        assert len(error.findings) == 1
        assert usable
    states = [record.state for record in ranks.records(0)]
    assert states == [State.REJECTED, State.COMPLETED]


def asynchronously(rank: int, way: str) -> None:
    work = dist.all_reduce(ones(2 + rank), async_op=True)
    if way == "wait":
        work.wait()
    elif way == "future":
        work.get_future().wait()
    else:
        torch.futures.wait_all([work.get_future().then(lambda done: done.value())])


@pytest.mark.parametrize("way", ["wait", "future", "then"])
def test_an_asynchronous_mismatch_raises_where_it_is_waited_for(ranks: Any, way: str) -> None:
    def program(rank: int) -> object:
        error = ranks.error_of(lambda: asynchronously(rank, way))
        return error, works()

    for error, usable in ranks(program):
        assert isinstance(error, RuntimeError)
        assert "Detected mismatch between collectives on ranks" in str(error)
        assert usable


def test_every_way_of_asking_an_asynchronous_work_that_was_refused(ranks: Any) -> None:
    def program(rank: int) -> object:
        work = dist.all_reduce(ones(2 + rank), async_op=True)
        errors = [ranks.error_of(ask) for ask in (work.wait, work.wait, work.result, work.synchronize)]
        return [type(error) for error in errors], work.is_completed(), work.is_success(), type(work.exception())

    expected = ([CollectiveMismatchError] * 4, True, False, CollectiveMismatchError)
    assert ranks(program) == [expected, expected]


def test_two_groups_in_opposite_orders_meet_no_deadlock(ranks: Any) -> None:
    def program(rank: int) -> object:
        groups = [dist.new_group(), dist.new_group()]
        order = groups if rank == 0 else groups[::-1]
        tensors = [ones(1) for _ in range(12)]
        works = [dist.all_reduce(tensors[i], group=order[i % 2], async_op=True) for i in range(12)]
        for work in reversed(works):
            work.wait()
        return [tensor.item() for tensor in tensors]

    assert ranks(program) == [[2.0] * 12] * 2


def test_a_synchronous_call_comes_after_the_asynchronous_ones_before_it(ranks: Any) -> None:
    def program(rank: int) -> object:
        many = [ones(1) * (i + 1) for i in range(40)]
        works = [dist.all_reduce(tensor, async_op=True) for tensor in many]
        last = ones(5)
        dist.all_reduce(last, dist.ReduceOp.MAX)
        for work in works:
            work.wait()
        return [tensor.item() for tensor in many], last.sum().item()

    assert ranks(program) == [([2.0 * (i + 1) for i in range(40)], 5.0)] * 2
    sequences = [record.sequence for record in ranks.records(0)]
    assert sequences == list(range(1, 42))


def test_threads_on_groups_of_their_own(ranks: Any) -> None:
    def program(rank: int) -> object:
        groups = [dist.new_group() for _ in range(3)]
        sums = [0.0] * 3

        def work(place: int) -> None:
            for step in range(10):
                tensor = ones(1) * step
                handle = dist.all_reduce(tensor, group=groups[place], async_op=step % 2 == 0)
                if handle is not None:
                    handle.wait()
                sums[place] += tensor.item()

        threads = [threading.Thread(target=work, args=(place,)) for place in range(3)]
        for thread in threads if rank else threads[::-1]:
            thread.start()
        for thread in threads:
            thread.join()
        return sums

    assert ranks(program) == [[90.0] * 3] * 2


def test_a_mismatch_in_one_group_leaves_the_others_alone(ranks: Any) -> None:
    def program(rank: int) -> object:
        group = dist.new_group()
        wrong = dist.all_reduce(ones(1 + rank), group=group, async_op=True)
        right = dist.all_reduce(tensor := ones(1), async_op=True)
        right.wait()
        return tensor.item(), type(ranks.error_of(wrong.wait)), works()

    assert ranks(program) == [(2.0, CollectiveMismatchError, True)] * 2


def test_missing_ranks_are_all_named_on_the_first_call_and_later(ranks: Any) -> None:
    def program(rank: int) -> object:
        first, later = dist.new_group(), dist.new_group()
        dist.barrier(later)
        hasten(first)
        hasten(later)
        errors = []
        if rank in (0, 2):
            errors = [
                ranks.error_of(lambda group=group: dist.all_reduce(ones(1), group=group)) for group in (first, later)
            ]
        dist.barrier()
        return errors

    answers = ranks(program, 4)
    assert answers[1] == answers[3] == []
    for error in answers[0]:
        assert type(error) is MissingRankError
        assert error.absent == (1, 3)
        assert str(error).startswith("[Rank 0]: Ranks 1, 3 failed to pass monitoredBarrier in 1000 ms")
    for error in answers[2]:
        assert error.absent == (1, 3)
        assert "Please check rank 0 logs for faulty rank" in str(error)
    missing = [event.data for event in ranks.box(2).events if event.kind == "missing"]
    assert [event["missing"] for event in missing] == [[1, 3], [1, 3]]


def test_the_group_is_usable_after_a_missing_rank_has_come_late(ranks: Any) -> None:
    def program(rank: int) -> object:
        group = hasten(dist.new_group())
        store = dist.distributed_c10d._get_default_store()
        if rank == 1:
            store.wait(["gave up"])
        error = ranks.error_of(lambda: dist.all_reduce(ones(1), group=group))
        store.set("gave up", "")
        hasten(group, 20)
        dist.barrier()
        tensor = ones(1)
        dist.all_reduce(tensor, group=group)
        return type(error), tensor.item()

    assert ranks(program) == [(MissingRankError, 2.0)] * 2


def test_an_asynchronous_call_without_the_others_raises_too(ranks: Any) -> None:
    def program(rank: int) -> object:
        group = hasten(dist.new_group())
        error = None
        if rank == 0:
            error = ranks.error_of(dist.all_reduce(ones(1), group=group, async_op=True).wait)
        dist.barrier()
        return error

    error, nothing = ranks(program)
    assert type(error) is MissingRankError
    assert error.absent == (1,)
    assert nothing is None


def test_a_late_rank_is_waited_for(ranks: Any) -> None:
    def program(rank: int) -> object:
        store = dist.distributed_c10d._get_default_store()
        if rank == 1:
            store.wait(["rank 0 is about to call"])
            time.sleep(0.3)
        store.set("rank 0 is about to call", "")
        return works()

    assert ranks(program, timeout=5) == [True, True]


def test_the_timeout_of_one_call_bounds_its_proof(ranks: Any) -> None:
    def program(rank: int) -> object:
        options = dist.AllreduceOptions()
        options.timeout = timedelta(milliseconds=700)
        error = None
        dist.barrier()
        if rank == 0:
            error = ranks.error_of(lambda: dist.group.WORLD.allreduce([ones(1)], options).wait())
        dist.distributed_c10d._get_default_store().set(f"done {rank}", "")
        dist.distributed_c10d._get_default_store().wait(["done 0"])
        return type(error)

    # The timeout of the group is more than a test may take.
    assert ranks(program, timeout=600)[0] is MissingRankError


def test_a_monitored_barrier_names_who_is_missing_in_gloos_words(ranks: Any) -> None:
    def program(rank: int) -> object:
        error = None
        if rank == 0:
            error = ranks.error_of(lambda: dist.monitored_barrier(timeout=timedelta(0)))
        dist.distributed_c10d._get_default_store().set(f"done {rank}", "")
        dist.distributed_c10d._get_default_store().wait(["done 0"])
        return error

    error, _ = ranks(program)
    assert isinstance(error, RuntimeError)
    assert "monitoredBarrier" in str(error)


def test_work_that_nobody_waited_for_does_not_hold_up_the_end(ranks: Any) -> None:
    def program(rank: int) -> None:
        for _ in range(5):
            dist.all_reduce(ones(1), async_op=True)
        if rank == 0:
            dist.all_reduce(ones(1), async_op=True)

    # The timeout of the calls is more than a test may take.
    ranks(program, timeout=600)
    assert [record.sequence for record in ranks.records(0)] == [1, 2, 3, 4, 5, 6]
    # Launched, as it would have been without simcoll; nobody asked whether it ended.
    assert all(record.state >= State.STARTED for record in ranks.records(1))


def test_the_end_of_a_forked_process_leaves_its_parents_connections_alone(ranks: Any) -> None:
    import atexit
    import os

    def program(rank: int) -> object:
        dist.all_reduce(ones(1), async_op=True).wait()
        pid = os.fork()
        if pid == 0:
            atexit._run_exitfuncs()
            os._exit(0 if dist.is_initialized() else 1)
        _, status = os.waitpid(pid, 0)
        return status, works()

    assert ranks(program) == [(0, True)] * 2


def test_record_mode_launches_at_once_and_proves_nothing(ranks: Any) -> None:
    def program(rank: int) -> object:
        group = dist.new_group()
        names = {thread.name for thread in threading.enumerate() if thread.name.startswith("simcoll")}
        tensor = ones(1)
        dist.all_reduce(tensor, dist.ReduceOp.SUM if rank else dist.ReduceOp.PRODUCT, group=group, async_op=True).wait()
        return names

    assert ranks(program, mode="record") == [set(), set()]
    assert [record.call.reduce_op for rank in (0, 1) for record in ranks.records(rank)] == ["product", "sum"]


def test_what_was_found_harmless_does_not_hide_what_is_not(ranks: Any) -> None:
    """A flattened view of the same data is tolerated on a broadcast's buffers; the same calls at odds later are not."""

    def program(rank: int) -> object:
        flat = [ranks.error_of(lambda: dist.broadcast(ones(6) if rank else ones(2, 3), src=0)) for _ in range(3)]
        sizes = ranks.error_of(lambda: dist.broadcast(ones(6) if rank else ones(2, 4), src=0))
        roots = ranks.error_of(lambda: dist.broadcast(ones(6) if rank else ones(2, 3), src=rank))
        again = ranks.error_of(lambda: dist.broadcast(ones(6) if rank else ones(2, 3), src=0))
        return flat, type(sizes), type(roots), again

    expected = ([None] * 3, CollectiveMismatchError, CollectiveMismatchError, None)
    assert ranks(program) == [expected, expected]


def test_an_asynchronous_call_returns_while_another_thread_waits_in_a_synchronous_one(ranks: Any) -> None:
    def program(rank: int) -> object:
        store = dist.distributed_c10d._get_default_store()
        first, second = ones(1), ones(1) * 3
        if rank == 1:
            # Comes only when rank 0 has made its second call, which a first call that has not ended must not hold up.
            store.wait(["second call made"], timedelta(seconds=30))
        waiting = threading.Thread(target=dist.all_reduce, args=(first,))
        waiting.start()
        time.sleep(0.3)
        work = dist.all_reduce(second, async_op=True)
        store.set("second call made", "")
        work.wait()
        waiting.join()
        return first.item(), second.item()

    assert ranks(program) == [(2.0, 6.0)] * 2


def test_a_call_that_is_given_up_makes_way_for_those_behind_it() -> None:
    from simcoll.proof.queue import ProofQueue

    line: Any = ProofQueue()
    made, served = iter("abc"), []
    first, second, third = (line.join(lambda: next(made)) for _ in range(3))

    def serve(entry: Any) -> None:
        line.await_turn(entry)
        served.append(entry)
        line.leave(entry)

    threads = [threading.Thread(target=serve, args=(entry,)) for entry in (third, first)]
    line.leave(second)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert served == ["a", "c"]
    line.await_end(0)


def test_of_equal_calls_the_one_that_leaves_makes_way() -> None:
    from simcoll.proof.queue import ProofQueue

    line: Any = ProofQueue()
    first, second = (line.join(list) for _ in range(2))
    line.leave(second)
    assert [one is first for one in line.waiting] == [True]
    with pytest.raises(RuntimeError, match="no thread"):
        line.join(list, lambda entry: raise_(RuntimeError("no thread")))
    assert [one is first for one in line.waiting] == [True]


def raise_(error: Exception) -> None:
    raise error
