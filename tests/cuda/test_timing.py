"""When calls began and ended on a device, on a double of its events and streams."""

from __future__ import annotations

import gc
import weakref

import pytest

from simcoll.cuda.timing import Anchor, DeviceClock, DevicePlace, DeviceQueue, Timed, calls_between_times
from simcoll.errors import ConfigurationError
from tests.support.device_double import Clock, DoubleDevice, Mark, Work, Written, milliseconds

LANE = ("group 0", -1)


class Tensor:
    """Something that can be held."""


class Rank:
    """A place on a double, and the calls that a program makes there."""

    def __init__(self, aside: float = 0.0) -> None:
        self.device = DoubleDevice(aside=aside)
        self.clock = Clock(self.device)
        clock = DeviceClock(self.device, self.clock.wall, self.clock.monotonic, self.clock.sleep)
        self.place = DevicePlace(self.device, clock)
        self.place.look()

    def call(
        self,
        takes: float,
        *,
        work: Work | None = None,
        held: object = None,
        timed: bool = True,
        marked_late: bool = False,
    ) -> tuple[Written, Timed]:
        """A call on the current stream, or one with a Work."""
        written = Written()
        begun = self.place.begin(written, timed=timed)
        assert begun is not None
        if work is None:
            self.device.run(takes)
        self.place.queued(begun, LANE, work, held, marked_late=marked_late)
        return written, begun

    def look(self, now: float) -> bool:
        """The device has come to ``now``."""
        self.device.now = now
        return self.place.look()


@pytest.fixture
def rank() -> Rank:
    return Rank()


def test_a_call_is_finished_when_the_device_has_ended_it_and_not_when_the_host_has_queued_it(rank: Rank) -> None:
    rank.device.run(5)
    written, _ = rank.call(10)
    assert rank.look(4)
    assert written.log == []
    assert rank.look(6)
    assert [kind for kind, _, _ in written.log] == ["runs"]
    assert rank.look(14)
    assert len(written.log) == 1
    assert not rank.look(16)
    assert milliseconds(written, rank.clock) == pytest.approx((5, 15))


def test_calls_end_in_their_order_and_one_look_sees_many(rank: Rank) -> None:
    calls = [rank.call(10)[0] for _ in range(5)]
    assert rank.look(35)
    assert [written.log[-1][0] if written.log else "" for written in calls] == ["ran", "ran", "ran", "runs", ""]
    assert not rank.look(50)
    assert [milliseconds(written, rank.clock)[0] for written in calls] == pytest.approx([0, 10, 20, 30, 40])


def test_a_call_queued_behind_another_begins_when_that_ends(rank: Rank) -> None:
    first, _ = rank.call(0, work=Work(20))
    second, _ = rank.call(0, work=Work(30))
    rank.look(40)
    assert milliseconds(first, rank.clock) == pytest.approx((0, 20))
    assert milliseconds(second, rank.clock) == pytest.approx((20, 30))


def test_events_are_used_again(rank: Rank) -> None:
    for number in range(1, 21):
        rank.call(1)
        rank.look(float(number))
    # An anchor, and the two of the first call.
    assert rank.device.made == 3


def test_events_of_calls_that_are_under_way_are_not(rank: Rank) -> None:
    for _ in range(4):
        rank.call(10)
    assert rank.device.made == 1 + 8
    rank.look(20)
    rank.call(10)
    assert rank.device.made == 1 + 8


def test_a_call_that_is_not_sampled_is_finished_without_times(rank: Rank) -> None:
    written, _ = rank.call(10, timed=False)
    assert rank.look(5)
    assert not written.log
    assert not rank.look(10)
    assert written.log == [("ended", 0, 0)]


def test_tensors_are_held_until_the_program_waits(rank: Rank) -> None:
    tensor = Tensor()
    alive = weakref.ref(tensor)
    _, begun = rank.call(0, work=Work(50), held=[tensor])
    del tensor
    assert alive() is not None
    begun.awaited()
    assert alive() is None


def test_tensors_of_a_call_nobody_waits_for_go_in_a_thread_of_the_program_after_its_end(rank: Rank) -> None:
    tensor = Tensor()
    alive = weakref.ref(tensor)
    rank.call(0, work=Work(50), held=[tensor])
    del tensor
    rank.look(49)
    rank.call(1)
    assert alive() is not None
    rank.look(51)
    assert alive() is not None
    rank.call(1)
    assert alive() is None


def test_whoever_keeps_a_call_keeps_no_ring_of_references(rank: Rank) -> None:
    gc.disable()
    try:
        written, begun = rank.call(1)
        alive = weakref.ref(begun.end)
        assert isinstance(begun.end, Mark)
        rank.look(2)
        assert begun.recorded is None
        assert written.log
        del begun
        assert alive() in rank.place._events
    finally:
        gc.enable()


def test_a_call_marked_late_is_marked_where_the_program_waits_and_tells_no_time(rank: Rank) -> None:
    work = Work(20)
    written, begun = rank.call(0, work=work, marked_late=True)
    assert rank.device.behind == []
    assert rank.look(30)
    assert [kind for kind, _, _ in written.log] == ["runs"]
    rank.device.stream = 35
    begun.awaited()
    assert rank.look(34)
    assert not rank.look(36)
    assert written.log[-1] == ("ended", 0, 0)


def test_a_call_marked_late_nobody_waits_for_has_ended_with_a_later_one(rank: Rank) -> None:
    first, begun = rank.call(0, work=Work(20), marked_late=True)
    second, _ = rank.call(0, work=Work(30))
    assert not rank.look(30)
    assert first.log[-1] == ("ended", 0, 0)
    assert second.log[-1][0] == "ran"
    begun.awaited()
    assert not rank.look(40)
    assert begun.end not in rank.place._events


def test_groups_do_not_wait_for_each_other(rank: Rank) -> None:
    other = Written()
    begun = rank.place.begin(other, timed=True)
    assert begun is not None
    rank.call(1000)
    rank.place.queued(begun, ("group 1", -1), Work(5), None, marked_late=False)
    rank.look(6)
    assert milliseconds(other, rank.clock)[1] == pytest.approx(5)


def test_nothing_is_recorded_while_a_graph_is_captured(rank: Rank) -> None:
    rank.device.capture = True
    assert rank.place.begin(Written(), timed=True) is None
    _, begun = Written(), Timed(rank.place, "current", Written(), None, rank.device.event(), None)
    begun.awaited()
    assert not begun.marked


def test_a_device_that_fails_ends_the_times_and_marks_nothing(rank: Rank) -> None:
    written, _ = rank.call(10)
    rank.device.broken = True
    assert not rank.look(20)
    assert written.log == []
    assert rank.place.begin(Written(), timed=True) is None
    rank.device.broken = False
    assert not rank.look(30)
    assert written.log == []


@pytest.mark.parametrize("when", ["begin", "queued", "awaited"])
def test_an_error_of_the_device_is_the_backends_to_raise(rank: Rank, when: str) -> None:
    if when == "begin":
        rank.device.broken = True
        assert rank.place.begin(Written(), timed=True) is None
    else:
        begun = rank.place.begin(Written(), timed=True)
        assert begun is not None
        rank.device.broken = when == "queued"
        rank.place.queued(begun, LANE, Work(1), None, marked_late=when == "awaited")
        rank.device.broken = True
        begun.awaited()
    assert rank.place.failed


def test_a_new_anchor_is_made_every_two_seconds_and_dates_what_follows(rank: Rank) -> None:
    first = rank.place.clock.anchor
    rank.look(1999)
    assert rank.place.clock.anchor is first
    rank.clock.begin_ns += 5_000_000
    rank.look(2001)
    assert rank.place.clock.anchor is not first
    rank.device.stream = 2001
    written, begun = rank.call(10)
    assert begun.anchor is rank.place.clock.anchor
    rank.look(2020)
    assert milliseconds(written, rank.clock) == pytest.approx((2001, 2011))


def test_an_anchor_that_is_held_up_is_taken_later_and_replaced_as_soon_as_may_be() -> None:
    device = DoubleDevice(aside=80)
    clock = Clock(device)
    made = DeviceClock(device, clock.wall, clock.monotonic, clock.sleep)

    def looked() -> Anchor | None:
        made.look()
        return made.anchor

    assert looked() is None
    assert clock.slept <= 0.0011
    device.now = 100
    late = looked()
    assert late is not None
    device.aside = 0
    looked()
    assert made.anchor is not late
    assert made.anchor.at_ns == pytest.approx(clock.wall(), abs=2)


def test_calls_wait_for_the_first_anchor_but_not_for_ever() -> None:
    rank = Rank(aside=80)
    written, _ = rank.call(10)
    assert rank.look(20)
    assert written.log == []
    rank.look(90)
    assert milliseconds(written, rank.clock)[1] - milliseconds(written, rank.clock)[0] == pytest.approx(10)
    rank = Rank(aside=1e9)
    written, _ = rank.call(10)
    for _ in range(30):
        rank.look(20)
    assert written.log == [("ended", 0, 0)]


@pytest.mark.parametrize(("text", "every"), [("", 1), ("0", 0), ("1", 1), ("64", 64), ("1048576", 1 << 20)])
def test_how_often_is_timed(monkeypatch: pytest.MonkeyPatch, text: str, every: int) -> None:
    monkeypatch.setenv("SIMCOLL_TIMES_EVERY", text)
    assert calls_between_times() == every


@pytest.mark.parametrize("text", ["-1", "often", "1.5", "1048577", "\u0661", " 2"])
def test_what_is_no_number_of_calls(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("SIMCOLL_TIMES_EVERY", text)
    with pytest.raises(ConfigurationError, match=r"SIMCOLL_TIMES_EVERY=.*expected a whole number from 0"):
        calls_between_times()


def test_a_lane_is_empty_at_first() -> None:
    assert not DeviceQueue().calls
