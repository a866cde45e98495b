"""A wait with a time limit means in ``detail`` what it means without simcoll: it gives up, and the call goes on."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402

from tests.support.calls import ones  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.gloo]

SHORT = timedelta(milliseconds=50)


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
