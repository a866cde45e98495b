"""The thread that asks devices for calls begun and ended, and the times of this process.

It never waits for a device, and never sits in C++ without the interpreter's lock for long: the end of the interpreter,
which stops it, waits for it a moment. A forked child has neither the thread nor the calls of its parent's devices.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from simcoll.core.rank_local import ProcessOwned
from simcoll.cuda.timing import Device, DevicePlace, Timed, TimedRecord, calls_between_times

_PAUSE_SECONDS = 0.05
_LAST_PAUSE_SECONDS = 0.002
_LET_GO_SECONDS = 0.5


class DeviceTimes:
    """The calls of this process that run on devices; ``open_device`` makes the device of an index.

    ``permit_queries`` is called once, in the thread that looks: True if it may look while a graph is captured.
    """

    def __init__(
        self, open_device: Callable[[int], Device], permit_queries: Callable[[], bool], every: int | None = None
    ) -> None:
        self._open_device = open_device
        self._permit_queries = permit_queries
        self._every = calls_between_times() if every is None else every
        self._places: dict[int, DevicePlace] = {}
        self._looking = threading.Lock()
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._idle = True
        self._permitted = False
        self._captures = 0

    @property
    def wanted(self) -> bool:
        """True if the ends of calls on devices are recorded."""
        return self._every > 0

    def begin(self, recorded: TimedRecord, number: int, index: int) -> Timed | None:
        """The call of that number of its group is about to be queued on the device of that index; None where its end
        cannot be timed.
        """
        place = self._places.get(index)
        if place is None and (place := self._open(index)) is None:
            return None
        return place.begin(recorded, timed=number % self._every == 0)

    def queued(
        self, timed: Timed, queue: tuple[object, int], work: object, held: object, *, marked_late: bool = False
    ) -> None:
        """It was; see :meth:`simcoll.cuda.timing.DevicePlace.queued`."""
        timed.place.queued(timed, queue, work, held, marked_late=marked_late)
        if self._idle:
            self._notice()

    def _open(self, index: int) -> DevicePlace | None:
        if self._stop.is_set():
            return None
        try:
            place = DevicePlace(self._open_device(index))
            if not place.device.capturing():
                # The first call of all is dated by an event that came before it.
                place.clock.look()
        except RuntimeError:
            return None
        return self._places.setdefault(index, place)

    def _notice(self) -> None:
        if self._thread is None and not self._stop.is_set():
            with self._looking:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._serve, name="simcoll-device-times", daemon=True)
                    self._thread.start()
        self._wake.set()

    def _serve(self) -> None:
        self._permitted = self._permit_queries()
        while not self._stop.is_set():
            self._wake.clear()
            # A call that is queued from here on wakes the thread, which never looks twice within the pause: calls that
            # end at once must not wake it one by one.
            self._idle = True
            if not any(place.under_way for place in list(self._places.values())):
                self._wake.wait()
            self._idle = False
            self._stop.wait(_PAUSE_SECONDS)
            self.look()

    def look(self) -> bool:
        """Write down the calls begun and ended on devices since the last time; returns True if any is under way."""
        with self._looking:
            if self._captures and not self._permitted:
                return True
            under_way = [place.look() for place in list(self._places.values())]
            return any(under_way)

    @contextmanager
    def capturing(self) -> Iterator[None]:
        """While a graph is captured: a question to the device at the wrong moment would end the capture."""
        with self._looking:
            self._captures += 1
        try:
            yield
        finally:
            with self._looking:
                self._captures -= 1

    def settle(self, log: object, seconds: float) -> None:
        """Look until all calls of a group have ended, ``seconds`` at the most; then forget the group."""
        places = list(self._places.values())
        self._look_until(lambda: not any(place.expects(log) for place in places), seconds)
        for place in places:
            for key in [key for key in list(place.queues) if key[0] is log]:
                place.forget(key)

    def close(self, seconds: float) -> None:
        """Poll until no call's end is outstanding, for at most ``seconds``; then stop."""
        self._look_until(lambda: not any(place.expects() for place in list(self._places.values())), seconds)
        self._stop.set()
        self._wake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_LET_GO_SECONDS)

    def _look_until(self, done: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while self.look() and not done() and time.monotonic() < deadline:
            time.sleep(_LAST_PAUSE_SECONDS)


class _ProcessTimes(ProcessOwned):
    """The times of this process, once they were asked for."""

    def __init__(self) -> None:
        self.times: DeviceTimes | None = None
        self._inherited: list[DeviceTimes] = []
        super().__init__()

    def forked(self) -> None:
        """Keep the parent's: to free its events would ask for a device that a forked child cannot use."""
        if self.times is not None:
            self._inherited.append(self.times)
            self.times = None


_process = _ProcessTimes()


def device_times() -> DeviceTimes | None:
    """The times of this process; None where none are wanted."""
    if _process.times is None:
        from simcoll.cuda.events import CudaDevice, permit_queries

        _process.times = DeviceTimes(CudaDevice, permit_queries)
    return _process.times if _process.times.wanted else None


def looks_paused() -> AbstractContextManager[None]:
    """While a graph is captured: no look at a device that would end the capture."""
    return nullcontext() if _process.times is None else _process.times.capturing()


def close_device_times(seconds: float) -> None:
    """Look a last time, for ``seconds`` at the most."""
    if _process.times is not None:
        _process.times.close(seconds)
        _process.times = None
