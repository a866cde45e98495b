"""CUDA's events and streams as :mod:`simcoll.cuda.timing` uses them: this module never waits for a device.

``torch.cuda`` makes an object of every stream that it is asked for; questions asked at every call bypass it.
"""

from __future__ import annotations

import contextlib
import ctypes
from typing import Any

import torch
from torch._C import (
    _cuda_getCurrentStream,
    _cuda_getDevice,
    _cuda_isCurrentStreamCapturing,
    _cuda_maybeExchangeDevice,
    _cuda_setStream,
    _CudaEventBase,
)
from torch.distributed import Work

_OWN_PRIORITY = -2
"""Neither that of computation (0) nor that of NCCL's high-priority streams (the highest, -3).

torch deals its streams out in turn, so that one of ours may be one that a program was given: with this priority none
asks for them. Streams of different priorities share no hardware queue either, in which a stream that waits would hold
up another.
"""

_ASIDE_PRIORITY = -1
_MOST_STREAMS = 256
_THREAD_LOCAL_CAPTURE = 1


class CudaDevice:
    """One CUDA device, as the calling thread uses it."""

    record = staticmethod(_CudaEventBase.record)
    """Record an event on a stream that :meth:`current` gave."""

    capturing = staticmethod(_cuda_isCurrentStreamCapturing)
    """True while the thread's current stream is captured into a CUDA graph."""

    def __init__(self, index: int) -> None:
        self._index = index
        self._streams: dict[tuple[int, int, int], torch.cuda.Stream] = {}
        self._behind = torch.cuda.Stream(index, priority=_OWN_PRIORITY)
        self._aside = torch.cuda.Stream(index, priority=_ASIDE_PRIORITY)
        self._behind_data = self._behind.stream_id, self._behind.device_index, self._behind.device_type

    def event(self) -> torch.cuda.Event:
        """A new event that tells times."""
        return torch.cuda.Event(enable_timing=True)

    def current(self) -> Any:
        """The thread's current stream on this device."""
        data = _cuda_getCurrentStream(self._index)
        stream = self._streams.get(data)
        if stream is None:
            if len(self._streams) >= _MOST_STREAMS:
                self._streams.clear()
            number, index, kind = data
            stream = torch.cuda.Stream(stream_id=number, device_index=index, device_type=kind)
            self._streams[data] = stream
        return stream

    def record_behind(self, work: Work, event: torch.cuda.Event) -> None:
        """Record an event where the call of ``work`` ends, on a stream of ours: the program's do not wait for it."""
        device, before = _cuda_getDevice(), _cuda_getCurrentStream(self._index)
        _cuda_setStream(*self._behind_data)
        try:
            # Here wait() only orders the stream. Its alias, synchronize, emits a warning.
            work.wait()
            _CudaEventBase.record(event, self._behind)
        finally:
            # Setting a stream sets its device too. Going back does not initialise a device that was never used.
            _cuda_setStream(*before)
            if device != self._index:
                _cuda_maybeExchangeDevice(device)

    def record_aside(self, event: torch.cuda.Event) -> None:
        """Record an event on a stream that has nothing else to do."""
        _CudaEventBase.record(event, self._aside)


def permit_queries() -> bool:
    """Let this thread ask for events while another one captures a CUDA graph; returns True if it may.

    In the mode of a new thread a question at the wrong moment would end the capture. NCCL's watchdog does the same.
    """
    mode = ctypes.c_int(_THREAD_LOCAL_CAPTURE)
    with contextlib.suppress(OSError, AttributeError):
        # The library is loaded already, under this name.
        runtime = ctypes.CDLL(f"libcudart.so.{(torch.version.cuda or '').partition('.')[0]}")
        return bool(runtime.cudaThreadExchangeStreamCaptureMode(ctypes.byref(mode)) == 0)
    return False
