"""A test double of a device's events and streams: nothing happens until a test says that the device goes on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(eq=False)
class Work:
    """A call that the backend has queued; it ends when the device has come to ``ends``."""

    ends: float
    waited: int = 0


@dataclass(eq=False)
class Mark:
    """An event: when its device comes to it, in milliseconds; None before it was ever recorded."""

    device: DoubleDevice
    at: float | None = None

    def query(self) -> bool:
        self.device.check()
        return self.at is None or self.at <= self.device.now

    def elapsed_time(self, end: Mark) -> float:
        self.device.check()
        assert self.at is not None
        assert end.at is not None
        assert self.query()
        assert end.query()
        return end.at - self.at


@dataclass(eq=False)
class DoubleDevice:
    """One device: ``now`` is how far it has come, ``stream`` up to when its current stream is full (milliseconds)."""

    now: float = 0.0
    stream: float = 0.0
    capture: bool = False
    broken: bool = False
    aside: float = 0.0
    made: int = 0
    behind: list[Work] = field(default_factory=list)

    def check(self) -> None:
        if self.broken:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    def event(self) -> Mark:
        self.made += 1
        return Mark(self)

    def current(self) -> str:
        return "current"

    def record(self, event: Mark, stream: str) -> None:
        self.check()
        assert stream == "current"
        event.at = self.stream

    def record_behind(self, work: Work, event: Mark) -> None:
        self.check()
        self.behind.append(work)
        event.at = work.ends

    def record_aside(self, event: Mark) -> None:
        self.check()
        event.at = self.now + self.aside

    def capturing(self) -> bool:
        self.check()
        return self.capture

    def run(self, milliseconds: float) -> None:
        """Queue something on the current stream that takes so long."""
        self.stream += milliseconds


class Clock:
    """A wall clock and a monotonic one that go with the device."""

    def __init__(self, device: DoubleDevice, begin_ns: int = 1_000_000_000_000) -> None:
        self.device, self.begin_ns = device, begin_ns
        self.slept = 0.0

    def wall(self) -> int:
        return self.begin_ns + round((self.device.now + self.slept * 1e3) * 1e6)

    def monotonic(self) -> float:
        return self.device.now / 1e3 + self.slept

    def sleep(self, seconds: float) -> None:
        self.slept += seconds


@dataclass(eq=False)
class Written:
    """Where a call's times go."""

    log: list[tuple[str, int, int]] = field(default_factory=list)

    def ran_on_device(self, began_ns: int, ended_ns: int = 0) -> None:
        self.log.append(("ran" if ended_ns else "runs", began_ns, ended_ns))

    def ended_on_device(self) -> None:
        self.log.append(("ended", 0, 0))


def milliseconds(written: Written, clock: Clock) -> tuple[float, float]:
    """When a call began and ended, by the device."""
    kind, began, ended = written.log[-1]
    assert kind == "ran"
    return (began - clock.begin_ns) / 1e6, (ended - clock.begin_ns) / 1e6


Queue = Callable[..., Written]
