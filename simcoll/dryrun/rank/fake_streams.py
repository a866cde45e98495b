"""Streams and events of a fake device, which add their waits to a :class:`DeviceOrder`.

They replace the streams of torch.cpu, which do nothing so that code for any device runs (FSDP2 does), and the fake
streams of torch.cuda.
"""

from __future__ import annotations

from contextlib import nullcontext
from types import ModuleType
from typing import Any

import torch

from simcoll.core.patches import Patches
from simcoll.dryrun.rank.fake_cuda import FakeCudaEvent, FakeCudaStream
from simcoll.pricing.device_ops import DeviceOrder, Key, Reached


class Streams:
    """The streams of one rank: the current one, and the order that all of them add to."""

    def __init__(self, order: DeviceOrder) -> None:
        self.order = order
        self.default = OrderedStream(self)
        self.current = self.default

    def launch(self, key: Key, *, waits: bool) -> None:
        """Launch a call on the current stream; with ``waits`` the stream then waits for its end."""
        stream = self.current
        self.order.launch(key, None if stream is self.default else stream.reached)
        if waits:
            self.wait(key)

    def wait(self, key: Key) -> None:
        """Let the current stream wait for a call."""
        self.current.wait_for(Reached(0, frozenset((key,))))

    def install(self, patches: Patches, module: ModuleType) -> None:
        """Replace the streams of torch's module for a kind of device."""
        streams = self

        class Stream(OrderedStream):
            def __init__(self, *args: Any, **kwargs: Any) -> None:
                super().__init__(streams)

        class Event(OrderedEvent):
            def __init__(self, *args: Any, **kwargs: Any) -> None:
                super().__init__(streams)

        for name, value in {**self._functions(), "Stream": Stream, "Event": Event}.items():
            patches.replace(module, name, value)

    def _functions(self) -> dict[str, Any]:
        """The functions of torch's modules that read and change the current stream."""
        enter = lambda stream: stream or nullcontext()  # noqa: E731
        return {
            "current_stream": lambda device=None: self.current,
            "default_stream": lambda device=None: self.default,
            "set_stream": lambda stream: setattr(self, "current", stream or self.default),
            "stream": enter,
            "StreamContext": enter,
            "synchronize": lambda device=None: self.default.synchronize(),
        }


class OrderedStream(FakeCudaStream):
    """A stream; the default one has completed whatever the order holds."""

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
        """The calls that it has waited for."""
        return self._streams.order.here() if self is self._streams.default else self._reached

    def wait_for(self, reached: Reached) -> None:
        """Wait for these calls."""
        if self is self._streams.default:
            self._streams.order.wait(reached.calls)
        else:
            self._reached = self._reached.joined(reached)

    def wait_stream(self, stream: Any) -> None:
        """Wait for what was launched on another stream so far."""
        if isinstance(stream, OrderedStream):
            self.wait_for(stream.reached)

    def wait_event(self, event: Any) -> None:
        """Wait for an event."""
        if isinstance(event, OrderedEvent):
            self.wait_for(event.reached)

    def record_event(self, event: Any = None) -> Any:
        """An event after what was launched on the stream so far."""
        found = event if isinstance(event, OrderedEvent) else OrderedEvent(self._streams)
        found.record(self)
        return found

    def synchronize(self) -> None:
        """Let the host wait for all that was launched on the stream."""
        self._streams.default.wait_for(self.reached)
        self._streams.order.hold()


class OrderedEvent(FakeCudaEvent):
    """An event at a place in a stream."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self.reached = Reached()

    def record(self, stream: Any = None) -> None:
        """Move the event behind what was launched on a stream so far."""
        self.reached = (stream if isinstance(stream, OrderedStream) else self._streams.current).reached

    def wait(self, stream: Any = None) -> None:
        """Let a stream wait for the event."""
        (stream if isinstance(stream, OrderedStream) else self._streams.current).wait_for(self.reached)

    def synchronize(self) -> None:
        """Let the host wait for the event."""
        self._streams.default.wait_for(self.reached)
        self._streams.order.hold()
