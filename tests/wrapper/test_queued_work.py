"""A call that is launched later than it was made: waits with a time limit, and backends that lack something."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402

from simcoll.core.record import Group, Source  # noqa: E402
from simcoll.recorder.arguments import arguments  # noqa: E402
from simcoll.recorder.recorder import GroupLog, Recorder  # noqa: E402
from simcoll.wrapper.queued_work import QueuedWork, WorkerThreads  # noqa: E402
from tests.support.calls import ones  # noqa: E402

SHORT = timedelta(milliseconds=50)


@pytest.mark.slow
@pytest.mark.gloo
@pytest.mark.parametrize("mode", [None, "record", "check", "detail"])
def test_a_wait_that_gives_up_may_be_repeated(ranks: Any, mode: str | None) -> None:
    """Rank 1 comes only when rank 0 has given up twice: a wait without end would never return."""

    def program(rank: int) -> object:
        dist.barrier()
        store = dist.distributed_c10d._get_default_store()
        if rank == 1:
            store.wait(["given up"])
        x = ones(2)
        work = dist.all_reduce(x, async_op=True)
        seen: list[object] = []
        if rank == 0:
            for _ in range(2):
                error = ranks.error_of(lambda: work.wait(SHORT))
                seen.append((type(error).__name__, str(error), work.is_completed()))
            store.set("given up", "")
        work.wait()
        return seen, x.tolist()

    (seen, here), (_, there) = ranks(program, mode=mode)
    assert seen == [("RuntimeError", "Operation timed out!", False)] * 2
    assert here == there == [2.0, 2.0]


@pytest.mark.slow
@pytest.mark.gloo
def test_a_wait_that_gave_up_leaves_no_failed_call_and_the_memory_watched(ranks: Any) -> None:
    def program(rank: int) -> object:
        store = dist.distributed_c10d._get_default_store()
        if rank == 1:
            store.wait(["written"])
        x = ones(2)
        work = dist.all_reduce(x, async_op=True)
        if rank == 0:
            assert ranks.error_of(lambda: work.wait(SHORT)) is not None
            x.add_(1)
            store.set("written", "")
        work.wait()
        return None

    ranks(program)
    box = ranks.box(0)
    assert [event.kind for event in box.events if event.kind in ("failed", "changed")] == ["changed"]
    assert ranks.records(0)[-1].state.name == "COMPLETED"


class NoFutures(dist.Work):  # type: ignore[misc]  # torch's stubs leave the class out
    """The Work of a backend that has no futures; the call has ended."""

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        return True

    def is_completed(self) -> bool:
        return True

    def get_future(self) -> Any:
        raise NotImplementedError("no futures here")


@pytest.mark.parametrize("asked_first", [True, False])
def test_who_waits_for_a_future_that_the_backend_lacks_hears_of_it(tmp_path: Path, asked_first: bool) -> None:
    log = GroupLog(Recorder(tmp_path, "detail", 0, 1), Group("0", "", (0,)), 0)
    entry = log.begin(arguments("allreduce", [[ones(2)]], {}), Source("train.py", 1, "step"))
    callbacks = WorkerThreads("callbacks")
    work = QueuedWork(entry, callbacks)
    future = work.get_future() if asked_first else None
    work.settle(NoFutures(), None)
    future = future or work.get_future()
    with pytest.raises(RuntimeError, match="no futures here"):
        future.wait()
    assert work.wait()
    callbacks.close()
