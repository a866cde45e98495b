"""Watches what a dry run's program does with values that nobody here knows.

Those are what other ranks would have sent, and what tensors without memory would hold. A program that reads one
(``item()``, ``if tensor:``) may take another way in the real run; that is noted with its line, once a line: whole
numbers and truths where they are read, other numbers where they are compared, since most of those are only printed.
Each time, which way it went is noted too: what two ranks do after they went different ways is not compared.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Sequence
from types import FrameType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from simcoll.core.record import source_document
from simcoll.core.source_roots import simcoll_folders, torch_folder
from simcoll.dryrun.rank.event_kinds import UNKNOWN_OBJECTS
from simcoll.dryrun.rank.fake_device import ORIGINAL
from simcoll.dryrun.rank.fake_tensors import stand_in
from simcoll.dryrun.rank.taint_numbers import converted, on_comparison, received, received_numbers
from simcoll.dryrun.rank.tensor_marks import SIZED, UNKNOWN, mark, put_mark, tensors_in
from simcoll.recorder.recorder import Recorder
from simcoll.recorder.source import current_source, is_program

EVENT = "received_value"
"""The kind of event by which a rank notes that its program has read a value that nobody knows."""

WAY = "way"
"""The kind of event by which a rank notes which way its program went at a line that read such a value."""

_MOST_WAYS = 1 << 14
"""So many are noted of a rank."""

_READS = ("item", "tolist", "numpy", "__bool__", "__int__", "__float__", "__index__", "__array__")
_PRINTING = "_tensor_str.py"
_KEEP = ("item", "tolist")
"""Those whose result keeps the mark."""


_WHOLE = ("tolist", "numpy", "__array__")
"""Those that read memory, and not by an operator."""


class ReceivedValues:
    """Marks the tensors that hold received values, and notes where the program reads one."""

    def __init__(self, recorder: Callable[[], Recorder | None]) -> None:
        self._recorder = recorder
        self._noted: set[tuple[str, int]] = set()
        self._ways = 0
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
            if self.paused or not self.holds(tensor):
                return value
            if not keeps or not tensor.is_floating_point():
                self.note(value)
            if _read_by_torch() and (type(value) is not int or _is_shown()):
                return value
            if keeps:
                return received(value)
            return converted(value) if type(value) is int else value

        setattr(read, ORIGINAL, method)
        return read

    def note_objects(self) -> None:
        """Write down that the program goes on without objects that another rank would have sent."""
        if (recorder := self._recorder()) is not None:
            recorder.event(UNKNOWN_OBJECTS)

    def note(self, outcome: object = None) -> None:
        """Write the line down that the program is at, and the way that it goes there if a number says it."""
        recorder = None if self.paused else self._recorder()
        if recorder is None:
            return
        source = current_source()
        if not _read_by_torch() and (source.file, source.line) not in self._noted:
            self._noted.add((source.file, source.line))
            recorder.event(EVENT, source=source_document(source))
        if isinstance(outcome, int) and self._ways < _MOST_WAYS and not _is_shown():
            self._ways += 1
            recorder.event(WAY, file=source.file, line=source.line, taken=int.__int__(outcome))


def _reader() -> FrameType | None:
    """Whoever reads."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(simcoll_folders()):
        frame = frame.f_back
    return frame


def _read_by_torch() -> bool:
    """Whether whoever reads is torch or the standard library, which print and check on the program's behalf."""
    frame = _reader()
    return frame is not None and not is_program(frame)


def _is_shown() -> bool:
    """Whether the value is read to be shown, by torch's printing or the standard library: no way follows from that."""
    frame = _reader()
    if frame is None or is_program(frame):
        return False
    file = frame.f_code.co_filename
    return not file.startswith(torch_folder()) or file.endswith(_PRINTING)


def sized_by_others(values: Sequence[object]) -> bool:
    """Whether arguments, or lists among them, are sizes that rest on unknown values, or tensors of such sizes."""
    return bool(received_numbers(values)) or any(
        not (mark(tensor, SIZED) or frozenset()).isdisjoint(tensor.shape) for tensor in tensors_in(values)
    )
