"""Calls that go the quick way in ``detail``: whatever is to be said of one is said as it is of any other call."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from simcoll.core.native import native
from simcoll.core.record import State
from simcoll.errors import CollectiveMismatchError, MissingRankError

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402

from simcoll.proof.prover import Prover  # noqa: E402
from tests.support.calls import ones, summed  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.gloo]

COMPILED = native("simcoll.recorder._calls") is not None


def going_the_whole_way() -> list[str]:
    """The operations of the calls of this process that are proved the whole way from now on."""
    ops: list[str] = []
    prove: Any = Prover.prove

    def noted(self: Prover, entry: Any, *given: Any, **named: Any) -> None:
        ops.append(entry.call.op)
        prove(self, entry, *given, **named)

    Prover.prove = noted  # type: ignore[method-assign]  # a rank's process ends with its program
    return ops


def make_known(*tensors: Any, op: Callable[[Any], object] = dist.all_reduce) -> None:
    """Make each call once, the whole way."""
    for tensor in tensors:
        op(tensor)


def test_a_mismatch_of_known_calls_raises_on_every_rank(ranks: Any) -> None:
    def program(rank: int) -> object:
        make_known(ones(2), ones(3))
        whole = going_the_whole_way()
        before = summed()
        error = ranks.error_of(lambda: dist.all_reduce(ones(2 + rank)))
        return error, before, summed(), whole

    for error, before, after, whole in ranks(program):
        assert type(error) is CollectiveMismatchError
        assert [finding.code for finding in error.findings] == ["SC102"]
        assert "SequenceNumber=4" in str(error)
        assert (before, after) == (2, 2)
        # The first sum of a one is no known call.
        assert not COMPILED or whole == ["all_reduce"]
    for rank in range(2):
        states = [record.state for record in ranks.records(rank)]
        assert states == [State.COMPLETED] * 3 + [State.REJECTED, State.COMPLETED]


def test_known_calls_that_differ_without_harm_run(ranks: Any) -> None:
    def from_first(tensor: Any) -> None:
        dist.broadcast(tensor, 0)

    def program(rank: int) -> object:
        make_known(ones(6), ones(2, 3), op=from_first)
        brought = []
        for _ in range(3):
            mine = ones(2, 3) if rank else ones(6) * 7
            from_first(mine)
            brought.append(mine.sum().item())
        return brought, ranks.error_of(lambda: from_first(ones(6 + rank)))

    for brought, error in ranks(program):
        assert brought == [42.0] * 3
        assert type(error) is CollectiveMismatchError


@pytest.mark.parametrize("stated", [False, True])
def test_a_rank_that_does_not_come_to_a_known_call_is_named(ranks: Any, stated: bool) -> None:
    def program(rank: int) -> object:
        options = dist.AllreduceOptions()
        options.asyncOp = False
        if stated:
            options.timeout = timedelta(seconds=1)
        group = dist.group.WORLD
        assert group is not None
        for _ in range(3):
            group.allreduce([ones(1)], options)
        if not stated:
            dist.distributed_c10d._set_pg_timeout(timedelta(seconds=1), group)
        store = ranks.store(f"missing {stated}")
        if rank:
            store.wait(["told"])
            return None
        error = ranks.error_of(lambda: group.allreduce([ones(1)], options))
        store.set("told", "")
        return error

    error, _ = ranks(program)
    assert type(error) is MissingRankError
    assert error.absent == (1,)
    assert "Ranks 1 failed to pass monitoredBarrier in 1000 ms" in str(error)
    assert [record.state for record in ranks.records(0)] == [State.COMPLETED] * 3 + [State.FAILED]
    [missing] = [event for event in ranks.box(0).events if event.kind == "missing"]
    assert missing.data["missing"] == [1]


def test_an_interrupt_of_a_known_call_ends_its_proof_on_every_rank(ranks: Any) -> None:
    class EnoughError(BaseException):
        pass

    def interrupted(number: int, frame: object) -> None:
        raise EnoughError

    def program(rank: int) -> object:
        make_known(ones(1), ones(1))
        store = ranks.store("interrupted")
        if rank:
            store.wait(["given up"])
            return type(ranks.error_of(lambda: dist.all_reduce(ones(1)))).__name__
        signal.signal(signal.SIGUSR2, interrupted)
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGUSR2)).start()
        try:
            dist.all_reduce(ones(1))
        except EnoughError:
            store.set("given up", "")
            return "interrupted"
        return "nothing"

    assert ranks(program) == ["interrupted", "MissingRankError"]


def test_what_the_backend_refuses_of_known_calls_is_written_down(ranks: Any) -> None:
    def program(rank: int) -> object:
        group = dist.group.WORLD
        assert group is not None
        make_known(ones(1), ones(1))

        plain = group._inner

        class Refusing:
            def allreduce(self, *_: object) -> None:
                raise ValueError("no such luck")

            def __getattr__(self, name: str) -> Any:
                return getattr(plain, name)

            def __hash__(self) -> int:
                return hash(plain)

        group._inner = Refusing()
        error = ranks.error_of(lambda: dist.all_reduce(ones(1)))
        group._inner = plain
        return str(error), summed()

    assert ranks(program) == [("no such luck", 2.0)] * 2
    states = [record.state for record in ranks.records(0)]
    assert states == [State.COMPLETED] * 2 + [State.REJECTED, State.COMPLETED]


def test_threads_that_make_known_calls_at_once_keep_their_order(ranks: Any) -> None:
    def program(rank: int) -> object:
        make_known(ones(1), ones(1))
        turn = threading.Lock()
        found = []

        def calls() -> None:
            for _ in range(25):
                # Ranks have to make calls in one order; which thread makes one does not matter.
                with turn:
                    found.append(summed())

        threads = [threading.Thread(target=calls) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return set(found), len(found)

    assert ranks(program) == [({2.0}, 100)] * 2
