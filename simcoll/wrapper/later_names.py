"""Finds out whether the lines that made a call go on to use its result, by the code of their functions.

A function that names a tensor again after the running instruction is taken to read it; likewise a list or a dict, or an
attribute of an object, that holds it. Each place of the program is looked at once.
"""

from __future__ import annotations

import dis
import sys
import weakref
from collections.abc import Sequence
from inspect import CO_OPTIMIZED
from itertools import pairwise
from types import CodeType, FrameType, ModuleType

import torch

from simcoll.recorder.source import Site, is_program

_FRAMES = 4
"""So many functions of the program, innermost first, are looked at."""

_MOST_PLACES = 4096
_LOADS = frozenset({"LOAD_FAST", "LOAD_NAME", "LOAD_DEREF", "LOAD_GLOBAL", "LOAD_FAST_BORROW"})

_ATTRIBUTES = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_NOT_READING = frozenset({"append", "clear", "extend"})
"""Methods of lists and dicts that read no element."""
_OWN_REFERENCES = 3
"""Those of the frame, of the function that asks, and of the question how many there are."""
_MOST_HELD = 1024
"""So many elements of a list or attributes of an object are looked at."""

_known: dict[tuple[tuple[CodeType, int], ...], bool] = {}
"""The answers by the functions looked at, for sites that are not kept."""


def named_later(site: Site, tensors: Sequence[weakref.ref[torch.Tensor]]) -> bool:
    """True if a function of the program that is running now, at ``site``, names one of these tensors again."""
    if site.named_later is None:
        site.named_later = _look(tensors)
    return site.named_later


def _look(tensors: Sequence[weakref.ref[torch.Tensor]]) -> bool:
    frames = _program_frames()
    key = tuple((frame.f_code, frame.f_lasti) for frame in frames)
    if (known := _known.get(key)) is not None:
        return known
    if len(_known) >= _MOST_PLACES:
        _known.clear()
    alive = {id(tensor) for reference in tensors if (tensor := reference()) is not None}
    found = _known[key] = any(_names(frame, alive) for frame in frames)
    return found


def _program_frames() -> list[FrameType]:
    found: list[FrameType] = []
    frame: FrameType | None = sys._getframe(3)
    while frame is not None and len(found) < _FRAMES:
        if is_program(frame):
            found.append(frame)
        frame = frame.f_back
    return found


def _names(frame: FrameType, tensors: set[int]) -> bool:
    values = _locals(frame)
    names = {name for name, value in values if _is_or_holds(value, tensors)}
    own = (pair for _, value in values for pair in list(_attributes(value).items()))
    attributes = {name for name, value in own if _is_or_holds(value, tensors)}
    if not names and not attributes:
        return False
    later = [one for one in dis.get_instructions(frame.f_code) if one.offset > frame.f_lasti]
    return any(
        ((one.opname in _LOADS and one.argval in names) or (one.opname in _ATTRIBUTES and one.argval in attributes))
        and not (then.opname in _ATTRIBUTES and then.argval in _NOT_READING)
        for one, then in pairwise(later)
    )


def _locals(frame: FrameType) -> list[tuple[str, object]]:
    """The local variables of a frame, which nothing holds longer than before."""
    known = frame.f_locals
    # A list: other threads may write to it meanwhile.
    values = list(known.items())
    # Before Python 3.13 the frame keeps what it was asked for until it ends; the program has it if it called locals().
    if type(known) is dict and frame.f_code.co_flags & CO_OPTIMIZED and sys.getrefcount(known) <= _OWN_REFERENCES:
        known.clear()
    return values


def _is_or_holds(value: object, tensors: set[int]) -> bool:
    if id(value) in tensors:
        return True
    if (type(value) is not dict and type(value) is not list and type(value) is not tuple) or len(value) > _MOST_HELD:
        return False
    # A copy: what runs meanwhile (another thread, a profiler's hook) may add to it.
    held = list(value.values()) if type(value) is dict else list(value)
    return any(id(one) in tensors for one in held)


def _attributes(value: object) -> dict[str, object]:
    """The attributes of an instance of a class, without running code of that class; a module's names are none."""
    if isinstance(value, ModuleType | type):
        return {}
    try:
        found = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return found if type(found) is dict and len(found) <= _MOST_HELD else {}
