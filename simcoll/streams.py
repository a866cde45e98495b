"""Keeps a call that is launched later, from another thread, in its place among the work of its CUDA stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType

import torch

_launch_streams: dict[torch.device, torch.cuda.Stream] = {}


class CallerStream:
    """Where the caller's stream stood when it made a call; as a context, the stream to launch it on.

    The launch happens on a stream that waits for that point only, not for what the caller has queued since.
    """

    def __init__(self, device: torch.device | None) -> None:
        self._device = device
        self._context: torch.cuda.StreamContext | None = None
        self._reached: torch.cuda.Event | None = None
        if device is not None:
            self._reached = torch.cuda.current_stream(device).record_event()

    @classmethod
    def of(cls, tensors: Mapping[str, Sequence[torch.Tensor]]) -> CallerStream:
        """The stream that a call on these tensors belongs to; without CUDA tensors the context does nothing."""
        for group in tensors.values():
            for tensor in group:
                return cls(tensor.device if tensor.is_cuda else None)
        return cls(None)

    def __enter__(self) -> None:
        if self._device is None or self._reached is None:
            return
        stream = _launch_streams.get(self._device)
        if stream is None:
            stream = _launch_streams[self._device] = torch.cuda.Stream(self._device)
        stream.wait_event(self._reached)
        self._context = torch.cuda.stream(stream)
        self._context.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._context is not None:
            self._context.__exit__(kind, value, traceback)
