"""Asynchronous calls that go the quick way to their end leave the records and events of the whole way."""

from __future__ import annotations

import gc
import os
import threading
import time
import weakref
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402

from simcoll.backends.gloo import GLOO  # noqa: E402
from simcoll.blackbox import read_black_box  # noqa: E402
from simcoll.core.record import Group  # noqa: E402
from simcoll.errors import CollectiveMismatchError  # noqa: E402
from simcoll.recorder.pending_errors import PENDING_ERRORS  # noqa: E402
from simcoll.recorder.quick import Works  # noqa: E402
from simcoll.recorder.recorder import GroupLog, Recorder  # noqa: E402
from simcoll.recorder.source import forget_chains  # noqa: E402
from simcoll.wrapper import async_checks  # noqa: E402
from simcoll.wrapper.async_checks import Flights, flights  # noqa: E402
from simcoll.wrapper.pipeline import RecordedPipeline  # noqa: E402
from simcoll.wrapper.process_group import RecordedProcessGroup  # noqa: E402
from simcoll.wrapper.quick_work import QuickWork, ordinary  # noqa: E402
from simcoll.wrapper.work import RecordedWork  # noqa: E402
from tests.support.native import KINDS, parts  # noqa: E402


class Done(dist.Work):  # type: ignore[misc]
    """The Work of a backend that does as it is told."""

    error: Exception | None = None
    ended = False

    def __init__(self, at_end: Callable[[], object] = bool) -> None:
        super().__init__()
        self.waited: list[Any] = []
        self._at_end = at_end

    def wait(self, timeout: Any = None) -> bool:
        self.waited.append(timeout)
        if self.error is not None:
            raise self.error
        self.ended = True
        self._at_end()
        return True

    def is_completed(self) -> bool:
        return self.ended

    def exception(self) -> Any:
        return self.error

    def get_future(self) -> Any:
        future: Any = torch.futures.Future()
        future.set_result([])
        return future


class Quickly(RecordedPipeline):
    def _quick_works(self) -> Works:
        return Works(QuickWork, Done)


class Rank:
    """One rank that makes calls of one group."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        forget_chains()
        self.box = folder / "rank00000.simcoll"
        self.flights = Flights()
        monkeypatch.setattr(flights, "process", self.flights)
        self.log = GroupLog(Recorder(folder, "record", 0, 2), Group("0", "default_pg", (0, 1)), 0, {"cpu": GLOO})
        self.pipeline = Quickly(self.log)
        self.quick = self.pipeline.quick(None, None)
        # As much of a group as its calls use.
        self.group: Any = SimpleNamespace(_quick=self.quick, _pipeline=self.pipeline, _inner=self, _section=None)
        self.group._pipeline_here = partial(getattr, self, "pipeline")
        self.group._device_types = ()
        self.group._collective = partial(RecordedProcessGroup._collective, self.group)
        self.inner: list[Done] = []
        self.fails: Exception | None = None
        self.before: Callable[[], object] = bool
        self.at_end: Callable[[], object] = bool

    def make(self, name: str, options: Any, asynchronous: bool, *tensors: Any) -> Any:
        options.asyncOp = asynchronous
        return vars(RecordedProcessGroup)[name](self.group, *tensors, options)

    def allreduce(self, *_: object) -> Any:
        """The backend's own method."""
        before, self.before = self.before, bool
        before()
        if self.fails is not None:
            raise self.fails
        self.inner.append(Done(self.at_end))
        return self.inner[-1]

    all_gather_single = allreduce

    def summed(self, tensor: Any, asynchronous: bool = True) -> Any:
        return self.make("allreduce", dist.AllreduceOptions(), asynchronous, [tensor])

    def gathered(self, output: Any, tensor: Any) -> Any:
        return self.make("all_gather_single", dist.distributed_c10d.AllgatherOptions(), True, output, tensor)

    def left(self) -> tuple[Any, ...]:
        """What the rank has written down, without times and object addresses."""
        self.flights.look_after(last=True)
        box = read_black_box(self.box)
        names = ("state", "flags", "sequence", "signature", "source")
        return [[int(one) for one in box.slots[name]] for name in names], [(e.kind, e.data) for e in box.events]


def waits(rank: Rank, x: Any) -> None:
    assert rank.summed(x).wait() is True


def waits_twice(rank: Rank, x: Any) -> None:
    work = rank.summed(x)
    work.wait()
    work.wait(timedelta(0))
    assert rank.inner[-1].waited == [None, None]


def writes_before_the_wait(rank: Rank, x: Any) -> None:
    work = rank.summed(x)
    x.add_(1)
    work.wait()


def writes_to_one_of_two(rank: Rank, x: Any) -> None:
    y = torch.ones(3)
    first, second = rank.summed(x), rank.summed(y)
    y.add_(1)
    first.wait()
    second.wait()


def writes_after_another_wait(rank: Rank, x: Any) -> None:
    y = torch.ones(3)
    first, second = rank.summed(x), rank.summed(y)
    rank.inner[-1].ended = True
    first.wait()
    y.add_(1)
    second.wait()


def overlaps(rank: Rank, x: Any) -> None:
    works = [rank.summed(x[:2]), rank.summed(x[1:3])]
    for work in works:
        work.wait()


def uses_parts_beside_each_other(rank: Rank, x: Any) -> None:
    works = [rank.summed(x[:2]), rank.summed(x[2:])]
    x.add_(1)
    for work in works:
        work.wait()


def a_synchronous_call_meets_it(rank: Rank, x: Any) -> None:
    work = rank.summed(x)
    rank.summed(x[:2], asynchronous=False)
    work.wait()


def a_synchronous_call_in_between(rank: Rank, x: Any) -> None:
    work = rank.summed(x)
    rank.summed(torch.ones(5), asynchronous=False)
    work.wait()


def writes_before_a_synchronous_call(rank: Rank, x: Any) -> None:
    work = rank.summed(x)
    x.add_(1)
    rank.summed(torch.ones(5), asynchronous=False)
    rank.inner[0].ended = True
    work.wait()


def drops_it_and_holds_the_result(rank: Rank, x: Any) -> None:
    rank.summed(x)
    rank.inner.clear()


def drops_it_with_its_result(rank: Rank, x: Any) -> None:
    rank.summed(torch.ones(3))
    rank.inner.clear()


def polls(rank: Rank, x: Any) -> None:
    work = rank.summed(x)
    assert not work.is_completed()
    rank.inner[-1].ended = True
    assert work.is_completed()
    assert work.exception() is None


def takes_the_future(rank: Rank, x: Any) -> None:
    assert rank.summed(x).get_future().wait() == []


def gives_up_and_waits_again(rank: Rank, x: Any) -> None:
    work = rank.summed(x)
    rank.inner[-1].error = RuntimeError("Operation timed out!")
    with pytest.raises(RuntimeError, match="timed out"):
        work.wait(timedelta(seconds=1))
    rank.inner[-1].error = None
    work.wait()


def fails(rank: Rank, x: Any) -> None:
    work = rank.summed(x)
    rank.inner[-1].error = RuntimeError("connection closed by peer")
    with pytest.raises(RuntimeError, match="connection closed") as raised:
        work.wait()
    assert raised.value is rank.inner[-1].error
    assert len(rank.inner[-1].waited) == 1


def is_refused(rank: Rank, x: Any) -> None:
    rank.fails = ValueError("not supported")
    with pytest.raises(ValueError, match="not supported"):
        rank.summed(x)
    rank.fails = None
    rank.summed(x).wait()


def many_at_once(rank: Rank, x: Any) -> None:
    works = [rank.summed(torch.ones(3)) for _ in range(300)]
    for work in reversed(works):
        work.wait()


def gathers(rank: Rank, x: Any) -> None:
    output = torch.ones(6)
    # Gloo adds a version for each rank.
    rank.at_end = lambda: output.add_(1).add_(1)
    rank.gathered(output, x).wait()
    rank.at_end = bool


def writes_to_what_gathers(rank: Rank, x: Any) -> None:
    output = torch.ones(6)
    rank.at_end = lambda: output.add_(1).add_(1).add_(1)
    rank.gathered(output, x).wait()
    rank.at_end = bool


def reads_one_input_twice(rank: Rank, x: Any) -> None:
    outputs = torch.ones(6), torch.ones(6)
    works = [rank.gathered(output, x) for output in outputs]
    for work in works:
        work.wait()


def gives_it_other_memory(rank: Rank, x: Any) -> None:
    y = torch.ones(3)
    first = rank.summed(y)
    y.data = torch.ones(3)
    second = rank.summed(y)
    y.data = torch.ones(4)
    y.add_(1)
    first.wait()
    second.wait()


def reshapes_it(rank: Rank, x: Any) -> None:
    y = torch.ones(3)
    work = rank.summed(y)
    y.unsqueeze_(0)
    work.wait()


def in_inference_mode(rank: Rank, x: Any) -> None:
    with torch.inference_mode():
        y = torch.ones(3)
        work = rank.summed(y)
        y.add_(1)
        work.wait()


def others_are_due(rank: Rank, x: Any) -> None:
    work = rank.summed(x)
    PENDING_ERRORS.add(CollectiveMismatchError("found in the background", ()), 0)
    with pytest.raises(CollectiveMismatchError):
        work.wait()
    work.wait()


SCENARIOS: tuple[Callable[[Rank, Any], None], ...] = (
    waits,
    waits_twice,
    writes_before_the_wait,
    writes_to_one_of_two,
    writes_after_another_wait,
    overlaps,
    uses_parts_beside_each_other,
    a_synchronous_call_meets_it,
    a_synchronous_call_in_between,
    writes_before_a_synchronous_call,
    drops_it_and_holds_the_result,
    drops_it_with_its_result,
    polls,
    takes_the_future,
    gives_up_and_waits_again,
    fails,
    is_refused,
    many_at_once,
    gathers,
    writes_to_what_gathers,
    reads_one_input_twice,
    gives_it_other_memory,
    reshapes_it,
    in_inference_mode,
    others_are_due,
)
NOTED = {
    "writes_before_the_wait": "changed",
    "writes_to_one_of_two": "changed",
    "overlaps": "overlap",
    "a_synchronous_call_meets_it": "overlap",
    "writes_before_a_synchronous_call": "changed",
    "fails": "failed",
    "is_refused": "rejected",
    "writes_to_what_gathers": "changed",
}
"""The only events that a scenario leaves; of the others none."""


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: str(scenario.__name__))
def test_both_ways_leave_the_same(
    scenario: Callable[[Rank, Any], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = []
    for kind in KINDS:
        with parts(kind):
            folder = tmp_path / kind
            rank = Rank(folder, monkeypatch)
            assert (rank.quick is None) == (kind == "python")
            x = torch.ones(3)
            for _ in range(4):
                scenario(rank, x)
            left.append(rank.left())
            assert rank.flights._by_storage == {}
            assert not rank.flights.quick
    slots, events = left[0]
    assert {kind for kind, _ in events} == ({NOTED[scenario.__name__]} if scenario.__name__ in NOTED else set())
    assert left[1] == (slots, events)


@pytest.fixture
def rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    with parts("compiled"):
        yield Rank(tmp_path, monkeypatch)


def made(rank: Rank, tensor: Any) -> Any:
    """A quick Work: of calls of one place the first goes the whole way, and the second to its launch."""
    for last in (False, False, True):
        work = rank.summed(tensor if last else torch.ones_like(tensor))
        if not last:
            work.wait()
    assert is_quick(work)
    return work


def is_quick(work: Any) -> bool:
    return type(work) is QuickWork


def test_a_work_is_ordinary_once_it_is_asked_for_more_than_a_wait(rank: Rank) -> None:
    work = made(rank, torch.ones(3))
    assert is_quick(work)
    assert len(rank.flights.quick or ()) == 1
    assert not work.is_completed()
    assert type(work) is RecordedWork
    assert len(rank.flights.quick or ()) == 0
    assert work.wait() is True
    assert work.is_completed()


def test_threads_may_wait_and_ask_at_once(rank: Rank) -> None:
    for _ in range(200):
        work = made(rank, torch.ones(3))
        threads = [threading.Thread(target=ask) for ask in (work.wait, work.is_completed, work.wait, work.exception)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert type(work) is RecordedWork
    assert rank.flights._by_storage == {}


def test_a_call_that_is_awaited_holds_its_tensors_no_longer_than_the_backend(rank: Rank) -> None:
    tensor = torch.ones(3)
    storage = weakref.ref(tensor)
    work = made(rank, tensor)
    del tensor
    assert storage() is not None
    work.wait()
    assert storage() is None


def test_a_cycle_through_a_work_is_collected_and_told(rank: Rank) -> None:
    tensor = torch.ones(3)
    tensor.work = made(rank, tensor)
    rank.inner.clear()
    del tensor
    gc.collect()
    assert len(rank.flights.quick or ()) == 0
    slots, _ = rank.left()
    assert slots[1][-1] != slots[1][-2]


def test_a_forked_child_has_no_open_calls(rank: Rank) -> None:
    work = made(rank, torch.ones(3))
    if (child := os.fork()) == 0:
        code = 1
        try:
            work.wait()
            code = 0 if not rank.flights.quick else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(rank.flights.quick or ()) == 1
    work.wait()
    slots, _ = rank.left()
    assert slots[0][-1] == slots[0][-2]


def test_a_call_that_python_notes_before_its_launch_goes_on_there(rank: Rank) -> None:
    works = []
    for another in (False, False, False, True):
        rank.before = (lambda: rank.summed(torch.ones(7), asynchronous=False)) if another else bool
        works.append(rank.summed(torch.ones(3)))
        works[-1].wait()
    assert [type(work) for work in works[2:]] == [QuickWork, RecordedWork]
    assert rank.flights._by_storage == {}


def test_everything_that_an_ordinary_work_can_be_asked_the_quick_one_can_be_asked() -> None:
    asked = {name for name in vars(dist.Work) if not name.startswith("__")} & set(vars(RecordedWork))
    assert asked <= set(vars(QuickWork))
    assert {"has_ended", "tell_when_waited"} <= set(vars(QuickWork))
    assert callable(ordinary)


def test_dropped_calls_are_looked_at_while_others_go_the_quick_way(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(async_checks, "_OUTLIVED_SECONDS", 0.05)
    kept, left = [], []
    for number in range(7):
        kept.append(torch.ones(3))
        work = rank.summed(kept[-1])
        assert number < 2 or is_quick(work)
        if number != 3:
            work.wait()
        del work
        left.append(len(rank.flights._orphans))
        time.sleep(0.06)
    assert left[3] == 1
    assert left[-1] == 0
