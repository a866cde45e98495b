"""Where a call that another thread launches stands among the work of its stream, with a double of torch.cuda's streams.

The double writes down what is ordered behind what; nothing of it is a result of CUDA.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from simcoll.backends.nccl import NCCL, NCCL2

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402

from simcoll.cuda import launch_order  # noqa: E402
from simcoll.recorder.arguments import arguments  # noqa: E402

GPU = torch.device("cuda", 0)


class Stream:
    """A stream that writes down what it waits for."""

    def __init__(self, device: Any = None) -> None:
        self.device = device
        self.waits: list[Any] = []

    def record_event(self) -> tuple[Stream, int]:
        """Where it stands."""
        return self, len(self.waits)

    def wait_event(self, event: Any) -> None:
        """Have what follows wait."""
        self.waits.append(event)


@pytest.fixture
def current(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The double of torch.cuda, whose current stream is that of each thread."""
    of_thread = threading.local()
    default = Stream(GPU)

    @contextmanager
    def stream(entered: Stream) -> Any:
        before, of_thread.stream = getattr(of_thread, "stream", default), entered
        yield
        of_thread.stream = before

    found = SimpleNamespace(stream=lambda: getattr(of_thread, "stream", default), default=default, enter=stream)
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: found.stream())
    monkeypatch.setattr(launch_order, "_streams", launch_order._Streams())
    return found


def on_thread(work: Any) -> Any:
    """What ``work`` gives on a thread of its own."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join()
    return found[0]


def test_the_launch_waits_for_the_moment_of_the_call_alone(current: SimpleNamespace) -> None:
    called = launch_order.CallerStream(GPU)
    current.default.wait_event("what the caller does since")

    def launch() -> Any:
        with called:
            return current.stream()

    stream = on_thread(launch)
    assert stream is not current.default
    assert stream.waits == [(current.default, 0)]


def test_each_thread_launches_on_a_stream_of_its_own(current: SimpleNamespace) -> None:
    def launch() -> Any:
        found = []
        for _ in range(2):
            with launch_order.CallerStream(GPU):
                found.append(current.stream())
        assert found[0] is found[1]
        return found[0]

    assert on_thread(launch) is not on_thread(launch)
    assert current.stream() is current.default


def test_another_stream_of_the_caller_is_what_the_launch_waits_for(current: SimpleNamespace) -> None:
    side = Stream(GPU)
    with current.enter(side):
        called = launch_order.CallerStream(GPU)
    with called:
        assert current.stream().waits == [(side, 0)]


class Work(dist.Work):  # type: ignore[name-defined,misc]  # torch is optional here
    """A work whose future says that it was waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.waited = 0

    def get_future(self) -> Any:
        """A future that is complete."""
        return self

    def wait(self, timeout: Any = None) -> bool:
        """An order to the stream."""
        self.waited += 1
        return True


@pytest.mark.parametrize(
    ("method", "backend", "waits"),
    [
        ("allgather", NCCL, 1),
        ("reduce_scatter", NCCL, 1),
        ("gather", NCCL, 0),
        ("allreduce", NCCL, 0),
        ("allgather", NCCL2, 0),
        ("allgather", None, 0),
    ],
)
def test_the_stream_waits_for_what_was_allocated_on_it(
    current: SimpleNamespace, method: str, backend: Any, waits: int
) -> None:
    found = arguments(method, ([torch.zeros(2)],), {})
    found.tensors, found.place = {}, GPU
    work = Work()
    called = launch_order.CallerStream.of(found, backend)
    with called:
        called.launched(work)
    assert work.waited == waits


def test_a_call_on_the_cpu_has_no_stream(current: SimpleNamespace) -> None:
    with launch_order.CallerStream.of(arguments("allreduce", ([torch.zeros(2)],), {}), NCCL):
        assert current.stream() is current.default
    with launch_order.CallerStream.of(arguments("barrier", (), {}), NCCL):
        assert current.stream() is current.default
