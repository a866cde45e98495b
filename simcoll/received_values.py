"""Watches what a dry run's program does with values that other ranks would have sent.

Such a value is a guess. A program that reads one (``item()``, ``if tensor:``) may take another way in the real run;
that is noted with its line, once a line. Whole numbers that are read keep their mark, so that splits that rest on them
are told apart: the calls that they are given to state no sizes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from simcoll.record import source_document
from simcoll.recorder import Recorder
from simcoll.source import current_source

EVENT = "received_value"
"""The kind of event by which a rank notes that its program has read a received value."""

_READS = ("item", "tolist", "__bool__", "__int__", "__float__", "__index__")
_COMPARES = ("__gt__", "__ge__", "__lt__", "__le__", "__eq__", "__ne__", "__neg__", "__and__", "__or__", "__invert__")
_REDUCES = ("__getitem__", "any", "all", "sum", "max", "min", "mean", "argmax", "argmin", "cpu", "to", "long", "int")
_DERIVES = (*_COMPARES, *_REDUCES)
_MOST_STORAGES = 65536
"""So many results are remembered; a program that keeps making new ones starts over."""


class ReceivedInt(int):
    """A whole number that was read from what other ranks would have sent."""


class ReceivedValues:
    """The tensors that hold received values, and who is told when the program reads one."""

    def __init__(self, recorder: Callable[[], Recorder | None]) -> None:
        self._recorder = recorder
        self._storages: dict[int, StorageWeakRef] = {}
        self._noted: set[tuple[str, int]] = set()
        self.paused = 0
        """Above 0 while torch itself reads them, as it does in its collectives of objects."""

    def mark(self, tensors: Iterable[torch.Tensor]) -> None:
        """Remember that these hold received values, as long as their memory lives."""
        if len(self._storages) >= _MOST_STORAGES:
            self._storages.clear()
        for tensor in tensors:
            if tensor.layout is torch.strided:
                reference = StorageWeakRef(tensor.untyped_storage())
                self._storages[reference.cdata] = reference

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor's memory holds a received value."""
        if not self._storages or tensor.layout is not torch.strided:
            return False
        try:
            known = self._storages.get(tensor.untyped_storage()._cdata)
        except (RuntimeError, NotImplementedError):
            return False  # a tensor without a storage of its own
        return known is not None and not known.expired()

    def watch(self) -> None:
        """Have the methods of tensors tell, from now on in this process."""
        for name in _READS:
            setattr(torch.Tensor, name, self._reading(getattr(torch.Tensor, name)))
        for name in _DERIVES:
            setattr(torch.Tensor, name, self._deriving(getattr(torch.Tensor, name)))

    def _reading(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def read(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            value = method(tensor, *args, **kwargs)
            if self.paused or not self.holds(tensor):
                return value
            self._note()
            return _marked(value) if method.__name__ in ("item", "tolist") else value

        return read

    def _deriving(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def derive(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            value = method(tensor, *args, **kwargs)
            if self._storages and not self.paused and self.holds(tensor) and isinstance(value, torch.Tensor):
                self.mark([value])
            return value

        return derive

    def _note(self) -> None:
        source = current_source()
        recorder = self._recorder()
        if recorder is not None and (source.file, source.line) not in self._noted:
            self._noted.add((source.file, source.line))
            recorder.event(EVENT, source=source_document(source))


def _marked(value: Any) -> Any:
    if isinstance(value, list):
        return [_marked(one) for one in value]
    return ReceivedInt(value) if type(value) is int else value


def holds_received(values: Sequence[object]) -> bool:
    """Whether arguments, or lists among them, hold a whole number that was received."""
    return any(
        type(value) is ReceivedInt or (isinstance(value, (list, tuple)) and any(type(x) is ReceivedInt for x in value))
        for value in values
    )
