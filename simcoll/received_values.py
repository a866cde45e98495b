"""Watches what a dry run's program does with values that nobody here knows.

Those are what other ranks would have sent, and what tensors without memory would hold. A program that reads one
(``item()``, ``if tensor:``) may take another way in the real run; that is noted with its line, once a line: whole
numbers and truths where they are read, other numbers where they are compared, since most of those are only printed.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Sequence
from types import FrameType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from simcoll.fake_tensors import stand_in
from simcoll.folders import simcoll_folders
from simcoll.pretended_device import ORIGINAL
from simcoll.received_numbers import converted, on_comparison, received, received_numbers
from simcoll.record import source_document
from simcoll.recorder import Recorder
from simcoll.source import current_source, is_program
from simcoll.tensor_marks import SIZED, UNKNOWN, mark, put_mark, tensors_in

EVENT = "received_value"
"""The kind of event by which a rank notes that its program has read a value that nobody knows."""

_READS = ("item", "tolist", "numpy", "__bool__", "__int__", "__float__", "__index__", "__array__")
_KEEP = ("item", "tolist")
"""Those whose result keeps the mark."""


_WHOLE = ("tolist", "numpy", "__array__")
"""Those that read memory, and not by an operator."""


class ReceivedValues:
    """Marks the tensors that hold received values, and notes where the program reads one."""

    def __init__(self, recorder: Callable[[], Recorder | None]) -> None:
        self._recorder = recorder
        self._noted: set[tuple[str, int]] = set()
        self.paused = 0
        """Above 0 while torch itself reads them, as it does in its collectives of objects."""

    def mark(self, tensors: Iterable[torch.Tensor]) -> None:
        """Remember that these hold received values, as long as their memory lives."""
        for tensor in tensors:
            put_mark(tensor, UNKNOWN, True)

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor holds values that nobody knows."""
        return isinstance(tensor, FakeTensor) or bool(mark(tensor, UNKNOWN))

    def watch(self) -> None:
        """Have the methods of tensors tell, from now on in this process."""
        for name in _READS:
            setattr(torch.Tensor, name, self._reading(getattr(torch.Tensor, name), keeps=name in _KEEP))
        on_comparison(self.note)

    def _reading(self, method: Callable[..., Any], *, keeps: bool) -> Callable[..., Any]:
        whole = method.__name__ in _WHOLE

        @functools.wraps(method)
        def read(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            value = method(stand_in(tensor) if whole else tensor, *args, **kwargs)
            if self.paused or not self.holds(tensor) or _read_by_torch():
                return value
            if not keeps or not tensor.is_floating_point():
                self.note()
            if keeps:
                return received(value)
            return converted(value) if type(value) is int else value

        setattr(read, ORIGINAL, method)
        return read

    def note(self) -> None:
        """Write the line down that the program is at."""
        if self.paused or _read_by_torch():
            return
        source = current_source()
        recorder = self._recorder()
        if recorder is not None and (source.file, source.line) not in self._noted:
            self._noted.add((source.file, source.line))
            recorder.event(EVENT, source=source_document(source))


def _read_by_torch() -> bool:
    """Whether whoever reads is torch or the standard library, which print and check on the program's behalf."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(simcoll_folders()):
        frame = frame.f_back
    return frame is not None and not is_program(frame)


def sized_by_others(values: Sequence[object]) -> bool:
    """Whether arguments, or lists among them, are sizes that rest on unknown values, or tensors of such sizes."""
    return bool(received_numbers(values)) or any(
        not (mark(tensor, SIZED) or frozenset()).isdisjoint(tensor.shape) for tensor in tensors_in(values)
    )
