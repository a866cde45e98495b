"""Tracks a program's use of tainted values: those that a dry run can only guess.

The values that other ranks would have sent, and those that tensors without memory would hold, are tainted. A program
that reads one (``item()``, ``if tensor:``) may take another branch in the real run. The first read of each line is
recorded: integers and booleans where they are read, floats where they are compared, since most floats are only printed.
The branch taken is recorded each time: calls of two ranks after they took different branches are not compared.

:class:`TaintedInt` and :class:`TaintedFloat` stay tainted through arithmetic. A comparison of one decides which branch
the program takes; listeners are called with its outcome.
"""

from __future__ import annotations

import functools
import math
import sys
import zlib
from collections.abc import Callable, Iterable, Sequence
from types import BuiltinFunctionType, FrameType
from typing import Any, SupportsIndex, TypeVar

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.jit import _builtins

from simcoll.core.patches import Patches
from simcoll.core.record import source_document
from simcoll.core.source_roots import simcoll_folders, torch_folder
from simcoll.dryrun.rank.event_kinds import BRANCH, ENDLESS, TAINTED_READ, UNKNOWN_OBJECTS
from simcoll.dryrun.rank.fake_device import ORIGINAL
from simcoll.dryrun.rank.fake_tensors import stand_in
from simcoll.dryrun.rank.tensor_marks import TAINTED, TAINTED_SIZES, mark, put_mark, tensors_in
from simcoll.recorder.recorder import Recorder
from simcoll.recorder.source import current_source, is_program

_ARITHMETIC = ("add", "sub", "mul", "floordiv", "mod", "pow", "truediv", "and", "or", "xor", "lshift", "rshift")
_UNARY = ("neg", "pos", "abs", "invert", "round", "trunc", "floor", "ceil")
_COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne", "bool")

_converted_values: set[int] = set()
_listeners: list[Callable[[object], object]] = []


def on_comparison(listener: Callable[[object], object]) -> None:
    """Call ``listener`` with the outcome of each comparison, truth test, hash or conversion of a tainted number."""
    _listeners[:] = [listener]


def taint_converted(value: int) -> int:
    """The value, which ``int()`` has made a plain one: from now on sizes that equal it count as tainted."""
    if value != 1:
        _converted_values.add(value)
    return value


class TaintedInt(int):
    """An integer that depends on guessed values."""

    def __reduce__(self) -> Any:
        return int, (int.__int__(self),)

    def __int__(self) -> int:
        return taint_converted(int.__int__(self))


class TaintedFloat(float):
    """A float that depends on guessed values."""

    def __reduce__(self) -> Any:
        return float, (float.__float__(self),)

    def __int__(self) -> int:
        return taint_converted(_noted(float.__int__(self)))

    def __float__(self) -> float:
        return _noted(float.__float__(self))


_Number = TypeVar("_Number", int, float)


def _noted(value: _Number) -> _Number:
    """The plain number that the program makes of a tainted float: what it does with that is not seen."""
    for listener in _listeners:
        listener(value)
    return value


def tainted(value: Any) -> Any:
    """The value with its numbers tainted, also in nested lists."""
    if isinstance(value, list):
        return [tainted(one) for one in value]
    if type(value) is int:
        return TaintedInt(value)
    return TaintedFloat(value) if type(value) is float else value


def tainted_numbers(values: Iterable[object]) -> frozenset[int]:
    """The tainted integers among arguments, and in lists among them."""
    found: set[int] = set()
    for value in values:
        if type(value) is TaintedInt:
            found.add(int.__int__(value))
        elif type(value) is int:
            if value in _converted_values:
                found.add(value)
        elif type(value) in (list, tuple):
            found |= tainted_numbers(value)  # type: ignore[arg-type]  # one of the two
    return frozenset(found)


def _computing(kind: type, name: str) -> Callable[..., Any]:
    method = getattr(kind, name)

    def compute(self: Any, *others: SupportsIndex) -> Any:
        return tainted(method(self, *others))

    return compute


def _comparing(kind: type, name: str) -> Callable[..., Any]:
    method = getattr(kind, name)

    def compare(self: Any, *others: object) -> Any:
        outcome = method(self, *others)
        for listener in _listeners:
            listener(outcome)
        return outcome

    return compare


def _hashing(kind: type) -> Callable[..., Any]:
    """A hash, by which the program looks the value up: that reads it."""
    method: Callable[..., int] = kind.__hash__

    def hashed(self: Any) -> int:
        for listener in _listeners:
            listener(self)
        value: int = method(self)
        return value

    return hashed


for _kind, _base in ((TaintedInt, int), (TaintedFloat, float)):
    for _name in (*_ARITHMETIC, *(f"r{_name}" for _name in _ARITHMETIC), *_UNARY):
        if hasattr(_base, f"__{_name}__"):
            setattr(_kind, f"__{_name}__", _computing(_base, f"__{_name}__"))
    _kind.__hash__ = _hashing(_base)  # type: ignore[method-assign]
    for _name in _COMPARISONS:
        setattr(_kind, f"__{_name}__", _comparing(_base, f"__{_name}__"))


def _digest(values: np.ndarray[Any, Any]) -> int | None:
    """A number that stands for the branch taken on what a program reads as an array: it may decide on any of them."""
    return zlib.crc32(np.ascontiguousarray(values).data) if values.size <= _MOST_DIGESTED else None


def _calculating(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of ``math``: what it makes of a tainted number is tainted, and a truth is a branch of the program."""

    @functools.wraps(function)
    def calculate(*args: Any, **kwargs: Any) -> Any:
        value = function(*args, **kwargs)
        if not any(type(one) in (TaintedInt, TaintedFloat) for one in args):
            return value
        return _noted(value) if type(value) is bool else tainted(value)

    return calculate


_MOST_BRANCHES = 1 << 14
"""At most so many are recorded of a rank."""

_MOST_ROUNDS = 1 << 10
"""So often a program may decide on a guess as before, and nothing else, where ranks can run again with known values."""

_MOST_DECISIONS = 1 << 6
"""A program that decides in more ways than these goes on."""

_MOST_DIGESTED = 1 << 16
"""The numbers of an array that a program may decide on; what is read of a larger one is not told apart."""

_READS = ("item", "tolist", "numpy", "__bool__", "__int__", "__float__", "__index__", "__array__")
_PRINTING = "_tensor_str.py"
_KEEP = ("item", "tolist")
"""Methods whose result stays tainted."""


_WHOLE = ("tolist", "numpy", "__array__")
"""Methods that read memory directly, not through an operator."""


class TaintTracker:
    """Marks tensors that hold guessed values, and records where the program reads one.

    With ``ends_loops`` it ends a program that receives guesses again and again and decides on them as it did before.
    """

    def __init__(self, recorder: Callable[[], Recorder | None], *, ends_loops: bool = False) -> None:
        self._recorder = recorder
        self._ends_loops = ends_loops
        self._received = 0
        self._rounds: dict[tuple[str, int, int], tuple[int, int]] = {}
        self._noted: set[tuple[str, int]] = set()
        self._branches = 0
        self.paused = 0
        """Above 0 while torch itself reads them, as it does in its object collectives."""

    def taint(self, tensors: Iterable[torch.Tensor]) -> None:
        """Mark these tensors for as long as their memory lives."""
        self._received += 1
        for tensor in tensors:
            put_mark(tensor, TAINTED, True)

    def is_tainted(self, tensor: torch.Tensor) -> bool:
        """True if a tensor holds values that can only be guessed."""
        return isinstance(tensor, FakeTensor) or bool(mark(tensor, TAINTED))

    def install(self, patches: Patches) -> None:
        """Track the methods of tensors that read values."""
        for name in _READS:
            patches.wrap(torch.Tensor, name, functools.partial(self._reading, keeps=name in _KEEP))
        for module in (torch, torch.random, torch.cuda, torch.cuda.random):
            seeds = module in (torch.cuda, torch.cuda.random)
            patches.wrap(module, "set_rng_state", functools.partial(self._setting, seeds=seeds))
        for name, function in [*vars(math).items()]:
            if isinstance(function, BuiltinFunctionType):
                operator, calculate = _builtins._find_builtin(function), _calculating(function)
                patches.replace(math, name, calculate)
                if operator is not None:
                    # The compiler of torch.jit knows the functions of ``math`` by their identities.
                    _builtins._register_builtin(calculate, operator)
        on_comparison(self.note)

    def _reading(self, method: Callable[..., Any], *, keeps: bool) -> Callable[..., Any]:
        whole = method.__name__ in _WHOLE

        @functools.wraps(method)
        def read(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            value = method(stand_in(tensor) if whole else tensor, *args, **kwargs)
            if self.paused or not self.is_tainted(tensor):
                return value
            if not keeps or not tensor.is_floating_point():
                self.note(_digest(value) if isinstance(value, np.ndarray) and not _is_read_by_torch() else value)
            if _is_read_by_torch() and (type(value) is not int or _is_shown()):
                return value
            if keeps:
                return tainted(value)
            return taint_converted(value) if type(value) is int else value

        setattr(read, ORIGINAL, method)
        return read

    def _setting(self, method: Callable[..., Any], *, seeds: bool) -> Callable[..., Any]:
        """Sets a state of random numbers: what the program draws from a guessed one is a guess, as its branches are.

        ``seeds`` for GPUs: fake ones draw the CPU's numbers, which are alike from then on where the states are.
        """

        @functools.wraps(method)
        def set_state(new_state: torch.Tensor, *args: Any, **kwargs: Any) -> None:
            method(new_state, *args, **kwargs)
            if self.paused or not self.is_tainted(new_state):
                return
            self.paused += 1
            number = zlib.crc32(repr(stand_in(new_state).tolist()).encode())
            self.paused -= 1
            if seeds:
                torch.default_generator.manual_seed(number)
            self.note(number)

        return set_state

    def note_missing_objects(self, *, waited: bool = False, stopped: bool = False) -> None:
        """Record that the program goes on without objects that another rank would have sent; ``waited`` for those.

        ``stopped`` if a rank had ended ahead of what it would have sent.
        """
        if (recorder := self._recorder()) is not None:
            recorder.event(UNKNOWN_OBJECTS, waited=waited, stopped=stopped)

    def note(self, outcome: object = None) -> None:
        """Record the program's current line, and the branch that it takes there if ``outcome`` is an integer.

        What it does with another value, such as that of ``float(tensor)``, cannot be followed: any branch may be next.
        """
        recorder = None if self.paused else self._recorder()
        if recorder is None:
            return
        source = current_source()
        if not _is_read_by_torch() and (source.file, source.line) not in self._noted:
            self._noted.add((source.file, source.line))
            recorder.event(TAINTED_READ, source=source_document(source))
            if not isinstance(outcome, int):
                recorder.event(BRANCH, file=source.file, line=source.line)
        if not isinstance(outcome, int) or _is_shown():
            return
        taken = int.__int__(outcome)
        if self._branches < _MOST_BRANCHES:
            self._branches += 1
            recorder.event(BRANCH, file=source.file, line=source.line, taken=taken)
        if self._ends_loops:
            self._count_round((source.file, source.line), taken, recorder)

    def _count_round(self, line: tuple[str, int], taken: int, recorder: Recorder) -> None:
        """Count how often each decision followed a newly received guess since the program last decided otherwise."""
        decision = (*line, taken)
        if decision not in self._rounds:
            known = self._rounds if len(self._rounds) < _MOST_DECISIONS else ()
            self._rounds = dict.fromkeys((*known, decision), (self._received, 1))
            return
        received, rounds = self._rounds[decision]
        if received == self._received:
            return
        self._rounds[decision] = self._received, rounds + 1
        if rounds >= _MOST_ROUNDS:
            recorder.event(ENDLESS)
            raise SystemExit(0)


def _reading_frame() -> FrameType | None:
    """The frame that reads the value: the innermost one outside simcoll."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(simcoll_folders()):
        frame = frame.f_back
    return frame


def _is_read_by_torch() -> bool:
    """True if torch or the standard library reads the value: they print and check on the program's behalf."""
    frame = _reading_frame()
    return frame is not None and not is_program(frame)


def _is_shown() -> bool:
    """True if the value is read to be printed, by torch or the standard library: no branch depends on that."""
    frame = _reading_frame()
    if frame is None or is_program(frame):
        return False
    file = frame.f_code.co_filename
    return not file.startswith(torch_folder()) or file.endswith(_PRINTING)


def has_tainted_size(values: Sequence[object]) -> bool:
    """True if arguments, or lists among them, contain tainted sizes or tensors of such sizes."""
    return bool(tainted_numbers(values)) or any(
        not (mark(tensor, TAINTED_SIZES) or frozenset()).isdisjoint(tensor.shape) for tensor in tensors_in(values)
    )
