"""The Work of a queued call: it can be asked anything before it is launched, and answers as the backend's does."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from simcoll.core.record import Group, Source, State

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402

from simcoll.blackbox import read_black_box  # noqa: E402
from simcoll.recorder.arguments import arguments  # noqa: E402
from simcoll.recorder.recorder import Entry, GroupLog, Recorder  # noqa: E402
from simcoll.wrapper.queued_work import QueuedWork, WorkerThreads  # noqa: E402
from simcoll.wrapper.work import RecordedWork  # noqa: E402


class Done(dist.Work):  # type: ignore[misc]
    """A call that the backend has completed, or failed to."""

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__()
        self._error = error
        self._future: Any = torch.futures.Future()
        self._future.set_result([torch.ones(1)])

    def wait(self, timeout: Any = None) -> bool:
        if self._error is not None:
            raise self._error
        return True

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return self._error is None

    def exception(self) -> Any:
        return self._error

    def get_future(self) -> Any:
        return self._future


@pytest.fixture
def entry(tmp_path: Path) -> Entry:
    log = GroupLog(Recorder(tmp_path, "detail", 0, 2), Group("0", "default_pg", (0, 1)), 0)
    return log.begin(arguments("allreduce", ([torch.ones(1)],), {}), Source("train.py", 1, "step"))


@pytest.fixture
def queued(entry: Entry) -> QueuedWork:
    return QueuedWork(entry, WorkerThreads("futures"))


def written(tmp_path: Path) -> tuple[State, list[str]]:
    box = read_black_box(tmp_path / "rank00000.simcoll")
    return box.record(0).state, [event.kind for event in box.events]


def test_before_the_launch_nothing_has_happened(queued: QueuedWork) -> None:
    assert (queued.is_completed(), queued.is_success(), queued.exception()) == (False, False, None)
    assert not queued.get_future().done()


def test_a_future_had_before_the_launch_gets_the_result(queued: QueuedWork, tmp_path: Path) -> None:
    future = queued.get_future()
    assert queued.get_future() is future
    queued.settle(Done(), None)
    assert future.wait()[0].item() == 1.0
    assert (queued.wait(), queued.is_completed(), queued.is_success()) == (True, True, True)
    assert written(tmp_path) == (State.COMPLETED, [])


def test_a_future_had_after_the_launch_gets_the_result(queued: QueuedWork) -> None:
    queued.settle(Done(), None)
    assert queued.get_future().wait()[0].item() == 1.0


@pytest.mark.parametrize("early", [True, False])
def test_a_refusal_is_raised_by_wait_and_by_the_future(queued: QueuedWork, early: bool) -> None:
    refusal = RuntimeError("at odds")
    future = queued.get_future() if early else None
    queued.settle(None, refusal)
    with pytest.raises(RuntimeError, match="at odds"):
        (future or queued.get_future()).wait()
    for ask in (queued.wait, queued.result, queued.synchronize):
        with pytest.raises(RuntimeError) as raised:
            ask()
        assert raised.value is refusal
    assert (queued.is_completed(), queued.is_success(), queued.exception()) == (True, False, refusal)


def test_those_who_wait_are_woken_by_the_launch(queued: QueuedWork) -> None:
    answers: list[bool] = []
    threads = [threading.Thread(target=lambda: answers.append(queued.wait())) for _ in range(3)]
    for thread in threads:
        thread.start()
    queued.settle(Done(), None)
    for thread in threads:
        thread.join()
    assert answers == [True] * 3


def test_a_failure_of_the_backend_is_written_and_raised_as_it_is(entry: Entry, tmp_path: Path) -> None:
    failure = RuntimeError("connection closed by peer")
    work = RecordedWork(Done(failure), entry)
    with pytest.raises(RuntimeError) as raised:
        work.wait()
    assert raised.value is failure
    assert written(tmp_path) == (State.FAILED, ["failed"])


def test_everything_that_a_work_can_be_asked_is_forwarded() -> None:
    asked = {name for name in vars(dist.Work) if not name.startswith("__")}
    own = {name for kind in (RecordedWork, QueuedWork) for name in vars(kind)}
    assert asked - own <= {"boxed", "unbox", "_pybind11_conduit_v1_"}
