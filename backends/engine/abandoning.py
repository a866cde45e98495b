"""How ranks that are threads are ended where nobody waits for them any more: after a timeout, or an interrupt."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from collections.abc import Collection, Sequence
from types import FrameType

from simcoll.core.source_roots import simcoll_folders

_ENDING_SECONDS = 2.0
"""So long ranks have to come to an end; one that sits in C code meanwhile is left behind."""

_AT_ONCE_SECONDS = 0.2
"""So long those have that were waiting, and have been told."""

_PLACES_SHOWN = 4
_HERE = os.path.dirname(os.path.realpath(__file__))
"""Where ranks wait for their turn."""


class AbandonedError(BaseException):
    """Raised in ranks that nobody waits for any more: no program should catch it."""


def end_threads(threads: Sequence[threading.Thread], inside: Collection[threading.Thread]) -> None:
    """See threads to their end; those ``inside`` a program raise AbandonedError at their next line of Python."""
    began = time.monotonic()
    threads = [thread for thread in threads if thread.ident is not None]
    for thread in threads:
        thread.join(max(0.0, began + _AT_ONCE_SECONDS - time.monotonic()))
    while (alive := [one for one in threads if one.is_alive()]) and time.monotonic() < began + _ENDING_SECONDS:
        for thread in alive:
            if thread in inside:
                _raise_in(thread, AbandonedError)
            thread.join(_AT_ONCE_SECONDS / len(alive) / 4)


def _raise_in(thread: threading.Thread, error: type[BaseException]) -> None:
    if thread.is_alive() and thread.ident is not None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(error))


def late_text(threads: Sequence[threading.Thread], timeout: float) -> str:
    """Which threads have not ended, and where in the program those are that do not wait for their turn."""
    frames = sys._current_frames()
    found = []
    for thread in threads:
        frame = frames.get(thread.ident or 0)
        if (
            frame is not None
            and os.path.dirname(_file(frame)) != _HERE
            and (place := _in_the_program(frame)) is not None
        ):
            code = place.f_code
            found.append(f"{thread.name} is at {code.co_filename}:{place.f_lineno} in {code.co_name}")
    where = "; ".join(found[:_PLACES_SHOWN]) or "no rank runs at this moment"
    return f"not all of {len(threads)} ranks have ended after {timeout:g} s: {where}"


def _in_the_program(frame: FrameType | None) -> FrameType | None:
    while frame is not None and _file(frame).startswith(simcoll_folders()):
        frame = frame.f_back
    return frame


def _file(frame: FrameType) -> str:
    return os.path.realpath(frame.f_code.co_filename)
