"""The environment, exit functions and threads of ranks that share a process."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from simcoll.backends.threaded.environment import RankEnvironment, exit_functions, join_own_threads, replace_environment
from simcoll.core.patches import Patches
from simcoll.core.rank_local import RankThreads, acting_as, acting_rank


@contextmanager
def joining(rank: RankThreads) -> Iterator[None]:
    yield


def test_what_a_rank_changes_it_alone_sees() -> None:
    process = {"HOME": "/here", "LANG": "C"}
    environment = RankEnvironment(process)
    one, other = RankThreads(0), RankThreads(1)
    with acting_as(one):
        environment["RANK"] = "0"
        environment["HOME"] = "/elsewhere"
        del environment["LANG"]
        assert dict(environment) == environment.copy() == {"HOME": "/elsewhere", "RANK": "0"}
        assert len(environment) == 2
        with pytest.raises(KeyError):
            environment["LANG"]
        with pytest.raises(KeyError):
            del environment["LANG"]
    with acting_as(other):
        assert dict(environment) == process
    assert process == {"HOME": "/here", "LANG": "C"}


def test_outside_ranks_it_is_the_processs() -> None:
    process = {"A": "1"}
    environment = RankEnvironment(process)
    environment["B"] = "2"
    del environment["A"]
    environment |= {"C": "3"}
    assert process == {"B": "2", "C": "3"}
    assert environment | {"D": "4"} == {"B": "2", "C": "3", "D": "4"}
    assert {"D": "4"} | environment == {"B": "2", "C": "3", "D": "4"}


def test_only_text_goes_in() -> None:
    with acting_as(RankThreads(0)), pytest.raises(TypeError, match="str expected"):
        RankEnvironment({})["N"] = 1  # type: ignore[assignment]


def test_getenv_and_exit_functions_are_the_ranks() -> None:
    called = []
    ranks = [RankThreads(rank) for rank in range(2)]
    with Patches() as patches:
        replace_environment(patches, joining)
        for rank in ranks:
            with acting_as(rank):
                os.environ["RANK"] = str(rank.rank)
                atexit.register(lambda: called.append(os.getenv("RANK")))
                atexit.register(called.append, "first")
                atexit.register(called.append, "never")
                atexit.unregister(called.append)
        with acting_as(ranks[1]):
            exit_functions.here.run()
            exit_functions.here.run()
    assert called == ["1"]
    assert "RANK" not in os.environ


def test_a_thread_belongs_to_the_rank_that_starts_it() -> None:
    rank, seen = RankThreads(3), []
    with Patches() as patches, acting_as(rank):
        replace_environment(patches, joining)
        threading.Thread(target=lambda: seen.append(acting_rank())).start()
        join_own_threads()
    assert seen == [rank]
