"""Who is told of a mismatch that the background found, and how often."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

import pytest

from simcoll.errors import CollectiveMismatchError
from simcoll.recorder.pending_errors import Verdicts

T = TypeVar("T")
NOBODY = -1
ERROR = CollectiveMismatchError("Detected mismatch")


def in_a_thread(call: Callable[[], T]) -> T:
    answers: list[T] = []
    thread = threading.Thread(target=lambda: answers.append(call()))
    thread.start()
    thread.join()
    return answers[0]


def test_the_main_thread_is_told_once() -> None:
    verdicts = Verdicts()
    verdicts.raise_due()
    verdicts.add(ERROR, NOBODY)
    with pytest.raises(CollectiveMismatchError) as told:
        verdicts.raise_due()
    assert told.value is ERROR
    verdicts.raise_due()
    assert verdicts.rest() == []


def test_another_thread_is_told_only_of_its_own_call() -> None:
    verdicts = Verdicts()
    verdicts.add(ERROR, NOBODY)
    assert in_a_thread(lambda: verdicts.awaited(0)) is None

    def own() -> CollectiveMismatchError | None:
        verdicts.add(second, threading.get_ident())
        return verdicts.awaited(0)

    second = CollectiveMismatchError("another")
    assert in_a_thread(own) is second
    assert verdicts.rest() == [ERROR]


def test_who_failed_waits_for_a_verdict_that_is_expected_and_for_no_other() -> None:
    verdicts = Verdicts()
    assert verdicts.awaited(20) is None
    with verdicts.expected():
        assert verdicts.awaited(0) is None
        adding = threading.Timer(0.01, verdicts.add, (ERROR, NOBODY))
        adding.start()
        assert verdicts.awaited(20) is ERROR
    verdicts.add(ERROR, NOBODY)
    verdicts.forget()
    assert verdicts.rest() == []
