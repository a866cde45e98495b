"""The store of ranks that take turns, used as C++ uses it: through a PrefixStore."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

pytest.importorskip("torch")

import torch.distributed as dist

from simcoll.backends.threaded.run import run_threaded


def on_ranks(program: Callable[[int, Any], Any], size: int = 2) -> Any:
    """Run ``program(rank, store)`` on ranks whose store is one."""

    def body(rank: int) -> Any:
        store = dist.TCPStore("127.0.0.1", 29500, size, rank == 0)
        return program(rank, dist.PrefixStore("here", store))

    return run_threaded(size, body, init=False)


def test_a_rank_that_waits_for_a_key_lets_the_others_set_it() -> None:
    def program(rank: int, store: Any) -> bytes:
        if rank == 1:
            store.set("key", "value")
            return b""
        store.wait(["key"], timedelta(seconds=5))
        value: bytes = store.get("key")
        return value

    assert on_ranks(program).results == {0: b"value", 1: b""}


def test_numbers_and_comparisons() -> None:
    def program(rank: int, store: Any) -> list[Any]:
        first = store.compare_set("winner", "", str(rank))
        return [store.add("count", 2) > 0, first, store.check(["count"]), store.check(["absent"])]

    outcome = on_ranks(program, 3)
    assert {tuple(result) for result in outcome.results.values()} == {(True, b"0", True, False)}


def test_a_key_that_nobody_sets_is_given_up_in_time() -> None:
    def program(rank: int, store: Any) -> str:
        with pytest.raises(RuntimeError, match="wait timeout after 2 s, keys: here/absent") as caught:
            store.wait(["absent"], timedelta(seconds=2))
        return str(caught.value)

    assert not on_ranks(program).exceptions


def test_keys_are_deleted_and_counted() -> None:
    def program(rank: int, store: Any) -> list[Any]:
        store.set(f"mine{rank}", b"\x00\xff")
        return [store.get(f"mine{rank}"), store.delete_key(f"mine{rank}"), store.delete_key("absent")]

    assert list(on_ranks(program).results.values()) == [[b"\x00\xff", True, False]] * 2
