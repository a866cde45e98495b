"""The thread that looks at devices: when it looks, what it leaves alone, how it ends."""

from __future__ import annotations

import os
import threading
import weakref

import pytest

from simcoll.cuda import watcher
from simcoll.cuda.watcher import DeviceTimes
from tests.support.device_double import DoubleDevice, Work, Written

LANE = ("group 0", -1)


class Noted(Written):
    """Says when something was written."""

    def __init__(self) -> None:
        super().__init__()
        self.told = threading.Event()

    def ran_on_device(self, began_ns: int, ended_ns: int = 0) -> None:
        super().ran_on_device(began_ns, ended_ns)
        if ended_ns:
            self.told.set()


class Process:
    """The times of a process on one double."""

    def __init__(self, *, permitted: bool = True, every: int = 1) -> None:
        self.device = DoubleDevice()
        self.times = DeviceTimes(lambda index: self.device, lambda: permitted, every)

    def call(self, number: int = 1, log: object = LANE[0]) -> Noted:
        written = Noted()
        begun = self.times.begin(written, number, 0)
        assert begun is not None
        self.device.run(1)
        self.times.queued(begun, (log, -1), None, None)
        return written


@pytest.fixture
def process() -> Process:
    return Process()


def test_a_thread_looks_by_itself_from_the_first_call_on(process: Process) -> None:
    before = threading.active_count()
    written = process.call()
    assert threading.active_count() == before + 1
    process.device.now = 1
    assert written.told.wait(10)
    again = process.call()
    process.device.now = 2
    assert again.told.wait(10)
    process.times.close(1)
    assert threading.active_count() == before


def test_each_nth_call_of_a_group_is_timed() -> None:
    process = Process(every=3)
    written = [process.call(number) for number in range(1, 7)]
    process.device.now = 10
    process.times.close(1)
    assert [one.log[-1][0] for one in written] == ["ended", "ended", "ran", "ended", "ended", "ran"]


def test_the_end_of_a_group_waits_for_its_own_calls_and_forgets_them(process: Process) -> None:
    mine = process.call(log="a")
    process.call(log="b")
    process.device.now = 1
    process.times.settle("a", 5)
    assert mine.log[-1][0] == "ran"
    assert [key for key, _ in process.times._places[0].queues] == ["b"]
    process.times.close(0)


def test_tensors_of_a_group_that_is_given_up_stay_until_the_next_call(process: Process) -> None:
    held = Written()
    alive = weakref.ref(held)
    begun = process.times.begin(Written(), 1, 0)
    assert begun is not None
    process.times.queued(begun, LANE, Work(5), [held])
    del held, begun
    process.times.settle(LANE[0], 0.01)
    assert alive() is not None
    process.call()
    assert alive() is None
    process.times.close(0)


def test_what_never_ends_holds_nothing_up_for_long(process: Process) -> None:
    written = process.call()
    process.times.settle(LANE[0], 0.01)
    process.times.close(0.01)
    assert [kind for kind, _, _ in written.log] in (["runs"], [])
    assert process.times.begin(Written(), 1, 1) is None


@pytest.mark.parametrize("permitted", [True, False])
def test_while_a_graph_is_captured_only_a_thread_that_may_asks(permitted: bool) -> None:
    process = Process(permitted=permitted)
    written = process.call()
    process.times.close(0)
    process.times._permitted = permitted
    with process.times.capturing():
        process.device.now = 1
        assert process.times.look() is not permitted
        assert bool(written.log and written.log[-1][0] == "ran") is permitted
    process.times.look()
    assert written.log[-1][0] == "ran"


def test_a_device_that_cannot_be_opened_has_no_times() -> None:
    def refuse(index: int) -> DoubleDevice:
        raise RuntimeError("no such device")

    assert DeviceTimes(refuse, lambda: True, 1).begin(Written(), 1, 0) is None


def test_a_call_with_a_work_is_marked_behind_it(process: Process) -> None:
    begun = process.times.begin(Written(), 1, 0)
    assert begun is not None
    work = Work(5)
    process.times.queued(begun, LANE, work, None)
    assert process.device.behind == [work]
    assert begun.end.at == 5
    process.times.close(0)


def test_a_forked_child_starts_anew(monkeypatch: pytest.MonkeyPatch, process: Process) -> None:
    process.call()
    own = watcher._process
    monkeypatch.setattr(own, "times", process.times)
    child = os.fork()
    if child == 0:
        os._exit(0 if own.times is None and process.times in own._inherited else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert own.times is process.times
    process.times.close(0)


def test_the_end_of_a_group_waits_for_no_end_that_nobody_marks(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unexpected(seconds: float) -> None:
        raise AssertionError(f"slept {seconds} s")

    monkeypatch.setattr(watcher.time, "sleep", unexpected)
    begun = process.times.begin(Written(), 1, 0)
    assert begun is not None
    process.times.queued(begun, LANE, Work(5), None, marked_late=True)
    process.times.settle(LANE[0], 30)
    process.times.close(30)
