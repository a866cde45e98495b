"""Who ends a group waits for Gloo's threads to rest, and for no other thread for long; frames come at once."""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest

from simcoll.core import threads
from simcoll.core.threads import let_gloo_rest, thread_frames


@contextmanager
def thread(name: str, seconds: float) -> Iterator[list[bool]]:
    """A thread that needs the GIL for so much of its own CPU time, and what it has done then."""
    done: list[bool] = []
    named, over = threading.Event(), threading.Event()

    def run() -> None:
        Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(name)
        named.set()
        while time.thread_time() < seconds and not over.is_set():
            pass
        done.append(True)
        over.wait()

    running = threading.Thread(target=run)
    running.start()
    named.wait()
    yield done
    over.set()
    running.join()


def test_a_thread_of_gloos_that_needs_the_gil_is_waited_for() -> None:
    with thread("pt_gloo_runloop", 0.02) as done:
        let_gloo_rest()
        assert done == [True]


def test_a_thread_that_computes_for_ever_is_not() -> None:
    with thread("loader", 60) as done, thread("pt_gloo_runloop", 0):
        let_gloo_rest()
        assert done == []


def test_without_gloo_nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads.time, "sleep", lambda seconds: pytest.fail("it sleeps"))
    with thread("loader", 60):
        let_gloo_rest()


@pytest.mark.parametrize("enabled", [True, False])
def test_no_collection_begins_meanwhile(enabled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    states: list[bool] = []
    real = sys._current_frames

    def seen() -> dict[int, FrameType]:
        states.append(gc.isenabled())
        return real()

    monkeypatch.setattr(sys, "_current_frames", seen)
    was = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        frames = thread_frames()
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if was else gc.disable)()
    assert states == [False]
    assert frames[threading.get_ident()] is sys._getframe()
