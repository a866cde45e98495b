"""The store that is asked again and again: it waits, it gives up, and it can be told to."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest

torch = pytest.importorskip("torch")
from torch.distributed import HashStore  # noqa: E402

from simcoll.proof.side_channel import PolledStore  # noqa: E402

LONG, SHORT = timedelta(seconds=20), timedelta(milliseconds=30)


def test_what_one_publishes_another_finds() -> None:
    shared = HashStore()
    mine, theirs = PolledStore(lambda: shared), PolledStore(lambda: shared)
    waiting = threading.Thread(target=theirs.wait, args=(["key"], LONG))
    waiting.start()
    mine.set("key", "value")
    waiting.join(20)
    assert not waiting.is_alive()
    assert theirs.get("key") == b"value"
    assert [mine.add("count", 1), theirs.add("count", 1)] == [1, 2]


def test_a_wait_ends_with_its_time() -> None:
    store = PolledStore(HashStore)
    with pytest.raises(RuntimeError, match=r"key: not in the store within 0\.03 s"):
        store.wait(["key"], SHORT)


def test_a_wait_ends_when_told_and_so_does_everything_after_it() -> None:
    store = PolledStore(HashStore)
    told: list[BaseException] = []

    def wait() -> None:
        try:
            store.wait(["key"], LONG)
        except RuntimeError as error:
            told.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    store.stop()
    waiting.join(10)
    assert "told to stop" in str(told[0])
    with pytest.raises(RuntimeError, match="told to stop"):
        store.set("key", "value")
