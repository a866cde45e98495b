"""In which thread a mismatch that the background found is raised, and how often."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

import pytest

from simcoll.errors import CollectiveMismatchError
from simcoll.recorder.pending_errors import PendingErrors

T = TypeVar("T")
NOBODY = -1
ERROR = CollectiveMismatchError("Detected mismatch")


def in_a_thread(call: Callable[[], T]) -> T:
    answers: list[T] = []
    thread = threading.Thread(target=lambda: answers.append(call()))
    thread.start()
    thread.join()
    return answers[0]


def test_an_error_is_raised_once_in_the_main_thread() -> None:
    pending = PendingErrors()
    pending.raise_due()
    pending.add(ERROR, NOBODY)
    with pytest.raises(CollectiveMismatchError) as raised:
        pending.raise_due()
    assert raised.value is ERROR
    pending.raise_due()
    assert pending.rest() == []


def test_another_thread_raises_the_errors_of_its_own_calls_only() -> None:
    pending = PendingErrors()
    pending.add(ERROR, NOBODY)
    assert in_a_thread(lambda: pending.awaited(0)) is None

    def own() -> CollectiveMismatchError | None:
        pending.add(second, threading.get_ident())
        return pending.awaited(0)

    second = CollectiveMismatchError("another")
    assert in_a_thread(own) is second
    assert pending.rest() == [ERROR]


def test_a_wait_that_failed_waits_for_an_expected_error_and_for_no_other() -> None:
    pending = PendingErrors()
    assert pending.awaited(20) is None
    with pending.expected():
        assert pending.awaited(0) is None
        adding = threading.Timer(0.01, pending.add, (ERROR, NOBODY))
        adding.start()
        assert pending.awaited(20) is ERROR
    pending.add(ERROR, NOBODY)
    pending.forked()
    assert pending.rest() == []
