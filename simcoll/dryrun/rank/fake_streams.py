"""Streams and events of a device that is not there: who waits for whom is told to a :class:`DeviceOrder`.

torch.cpu has streams that do nothing, so that code for any device runs (FSDP2 does), and a dry run pretends those of
torch.cuda; these stand in the place of both.
"""

from __future__ import annotations

from contextlib import nullcontext
from types import ModuleType
from typing import Any

import torch

from simcoll.dryrun.rank.fake_cuda import FakeCudaEvent, FakeCudaStream
from simcoll.pricing.device_ops import DeviceOrder, Key, Reached


class Streams:
    """The streams of one rank: which is current, and the order that all of them are told to."""

    def __init__(self, order: DeviceOrder) -> None:
        self.order = order
        self.default = OrderedStream(self)
        self.current = self.default

    def launch(self, key: Key, *, waits: bool) -> None:
        """The current stream launches a call; one that ``waits`` goes on when the call has ended."""
        stream = self.current
        self.order.launch(key, None if stream is self.default else stream.reached)
        if waits:
            self.wait(key)

    def wait(self, key: Key) -> None:
        """The current stream waits for a call."""
        self.current.wait_for(Reached(0, frozenset((key,))))

    def stand_in(self, module: ModuleType) -> None:
        """Replace the streams of torch's module for a kind of device; changes it for good."""
        streams, place = self, _Place(self)

        class Stream(OrderedStream):
            def __init__(self, *args: Any, **kwargs: Any) -> None:
                super().__init__(streams)

        class Event(OrderedEvent):
            def __init__(self, *args: Any, **kwargs: Any) -> None:
                super().__init__(streams)

        for name, value in {**vars(place), "Stream": Stream, "Event": Event}.items():
            if hasattr(module, name):
                setattr(module, name, value)


class OrderedStream(FakeCudaStream):
    """One stream; the default one has done whatever the order holds."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._reached = Reached()
        self._before: list[Any] = []
        cuda = torch.cuda.is_available()
        self.device = torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu")

    def __enter__(self) -> OrderedStream:
        self._before.append(self._streams.current)
        self._streams.current = self
        return self

    def __exit__(self, *exception: object) -> None:
        self._streams.current = self._before.pop()

    @property
    def reached(self) -> Reached:
        """What it has waited for."""
        return self._streams.order.here() if self is self._streams.default else self._reached

    def wait_for(self, reached: Reached) -> None:
        """Go on only when this is done."""
        if self is self._streams.default:
            self._streams.order.wait(reached.calls)
        else:
            self._reached = self._reached.joined(reached)

    def wait_stream(self, stream: Any) -> None:
        """Wait for what another stream was given until now."""
        if isinstance(stream, OrderedStream):
            self.wait_for(stream.reached)

    def wait_event(self, event: Any) -> None:
        """Wait for an event."""
        if isinstance(event, OrderedEvent):
            self.wait_for(event.reached)

    def record_event(self, event: Any = None) -> Any:
        """An event behind what the stream was given until now."""
        found = event if isinstance(event, OrderedEvent) else OrderedEvent(self._streams)
        found.record(self)
        return found

    def synchronize(self) -> None:
        """The host waits for all that the stream was given."""
        self._streams.default.wait_for(self.reached)
        self._streams.order.hold()


class OrderedEvent(FakeCudaEvent):
    """A place in a stream."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self.reached = Reached()

    def record(self, stream: Any = None) -> None:
        """Stand behind what a stream was given until now."""
        self.reached = (stream if isinstance(stream, OrderedStream) else self._streams.current).reached

    def wait(self, stream: Any = None) -> None:
        """Have a stream wait for it."""
        (stream if isinstance(stream, OrderedStream) else self._streams.current).wait_for(self.reached)

    def synchronize(self) -> None:
        """The host waits for it."""
        self._streams.default.wait_for(self.reached)
        self._streams.order.hold()


class _Place:
    """The functions by which torch's modules name the current stream."""

    def __init__(self, streams: Streams) -> None:
        self.current_stream = lambda device=None: streams.current
        self.default_stream = lambda device=None: streams.default
        self.set_stream = lambda stream: setattr(streams, "current", stream or streams.default)
        self.stream = self.StreamContext = lambda stream: stream or nullcontext()
        self.synchronize = lambda device=None: streams.default.synchronize()
