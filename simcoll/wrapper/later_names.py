"""Finds out whether the lines that made a call go on to use its result, by the code of their functions.

A function that names a tensor again after the running instruction is taken to read it. Each place of the program is
looked at once.
"""

from __future__ import annotations

import dis
import sys
import weakref
from collections.abc import Sequence
from types import CodeType, FrameType

import torch

from simcoll.recorder.source import Site, is_program

_FRAMES = 4
"""So many functions of the program, innermost first, are looked at."""

_MOST_PLACES = 4096
_LOADS = frozenset({"LOAD_FAST", "LOAD_NAME", "LOAD_DEREF", "LOAD_GLOBAL", "LOAD_FAST_BORROW"})

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
    names = {name for name, value in frame.f_locals.items() if id(value) in tensors}
    return bool(names) and any(
        instruction.offset > frame.f_lasti and instruction.opname in _LOADS and instruction.argval in names
        for instruction in dis.get_instructions(frame.f_code)
    )
