"""The line of a simulated rank's program that makes a call."""

from __future__ import annotations

import linecache
import os
import sys
import traceback
from types import CodeType, FrameType

from simcoll.core.record import UNKNOWN_SOURCE, Source
from simcoll.core.source_roots import package_folder

_FOLDERS = (package_folder("simcoll.backends"), package_folder("simcoll.simulation"))
"""The code that runs simulated ranks, and that plays scenarios: neither is the program's, nor the scenario's."""

_own: dict[str, bool] = {}
_sources: dict[tuple[CodeType, int], Source] = {}


def calling_line() -> Source:
    """The innermost line on the stack that is not simcoll's own code."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _is_own(frame.f_code.co_filename):
        frame = frame.f_back
    return UNKNOWN_SOURCE if frame is None else _source(frame.f_code, frame.f_lineno)


def raising_line(error: BaseException) -> Source:
    """The innermost line of an exception's traceback that is not simcoll's own code."""
    frames = [(frame.f_code, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    users = [(code, line) for code, line in frames if not _is_own(code.co_filename)]
    return _source(*users[-1]) if users else UNKNOWN_SOURCE


def _is_own(file: str) -> bool:
    own = _own.get(file)
    if own is None:
        own = _own[file] = os.path.realpath(file).startswith(_FOLDERS)
    return own


def _source(code: CodeType, line: int) -> Source:
    # Equal code in two files is equal as a code object.
    source = _sources.get((code, line))
    if source is None or source.file != code.co_filename:
        text = linecache.getline(code.co_filename, line).strip()
        source = _sources[code, line] = Source(code.co_filename, line, code.co_name, text)
    return source
