"""Finds the line of the user's program that made a call.

Frames of torch, simcoll, the standard library and generated code are passed over; frames of installed packages only
count where no frame of the user's own code is found. Whether a file counts is decided once.
"""

from __future__ import annotations

import linecache
import os
import sys
from types import CodeType, FrameType, TracebackType

from simcoll.core.rank_local import main_thread_of_rank
from simcoll.core.record import UNKNOWN_SOURCE, Source
from simcoll.core.source_roots import INSTALLED, OWN, SKIP, kind_of, simcoll_folders, torch_folder

_kinds: dict[str, int] = {}
_sources: dict[tuple[str, int, str], Source] = {}
_outermost: CodeType | None = None


def program_begins(code: CodeType) -> None:
    """Say which function runs the program: its callers, such as the command of a dry run, are no part of it."""
    global _outermost
    _outermost = code


def _kind(code: CodeType) -> int:
    # By file name and not by code object: equal code in two files is equal as a code object.
    kind = _kinds.get(code.co_filename)
    if kind is None:
        kind = _kinds[code.co_filename] = kind_of(code.co_filename)
    return kind


def _user_frame(frame: FrameType | None) -> FrameType | None:
    installed = None
    while frame is not None and frame.f_code is not _outermost:
        code = frame.f_code
        kind = _kinds.get(code.co_filename)
        if kind is None:
            kind = _kind(code)
        if kind == OWN:
            return frame
        if kind == INSTALLED and installed is None:
            installed = frame
        frame = frame.f_back
    return installed


def is_program(frame: FrameType) -> bool:
    """Whether a frame is of the user's program or of an installed package."""
    return _kind(frame.f_code) in (OWN, INSTALLED)


_PUBLIC = ("distributed_c10d.py", "c10d_logger.py", "overrides.py")
"""Files of torch's functions that give a call's Work to their caller; the last are those of modes around functions."""

_hands_on: dict[str, bool | None] = {}


def made_by_torch() -> bool:
    """Whether torch itself makes the call that is being made, and keeps its Work."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if file not in _hands_on:
            _hands_on[file] = _is_torchs(file)
        if (answer := _hands_on[file]) is not None:
            return answer
        frame = frame.f_back
    return True


def _is_torchs(filename: str) -> bool | None:
    """Whether a frame of this file is torch's; None if it only forwards the Work."""
    path = os.path.realpath(filename)
    if path.startswith(torch_folder()):
        return None if os.path.basename(path) in _PUBLIC else True
    if path.startswith(simcoll_folders()):
        return None
    # Code that inductor generates stands in a file of its own.
    return "torchinductor" in path


def current_source() -> Source:
    """The user's line that runs now, in this thread or else in the main thread (for calls from C++ threads)."""
    frame = _user_frame(sys._getframe(1))
    if frame is None:
        main = main_thread_of_rank()
        frame = None if main is None else _user_frame(sys._current_frames().get(main))
    if frame is None:
        return UNKNOWN_SOURCE
    code, line = frame.f_code, frame.f_lineno
    return _sources.get((code.co_filename, line, code.co_name)) or _source(code, line)


def traceback_source(traceback: TracebackType | None) -> Source:
    """The innermost line of the user's program in a traceback."""
    found, found_kind = UNKNOWN_SOURCE, SKIP
    while traceback is not None:
        kind = _kind(traceback.tb_frame.f_code)
        if kind != SKIP and kind >= found_kind:
            found, found_kind = _source(traceback.tb_frame.f_code, traceback.tb_lineno), kind
        traceback = traceback.tb_next
    return found


def _source(code: CodeType, line: int) -> Source:
    key = (code.co_filename, line, code.co_name)
    source = _sources.get(key)
    if source is None:
        text = linecache.getline(code.co_filename, line).strip()
        source = _sources[key] = Source(code.co_filename, line, code.co_name, text)
    return source
