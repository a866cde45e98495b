"""The threads of this process: the frames in which they are, and those of Gloo, as /proc shows them."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Final, NamedTuple

from simcoll.core.process import stat_of

_NAME: Final = "pt_gloo_runloop"
_LOOK_SECONDS: Final = 0.001
_OTHERS_SECONDS: Final = 0.05
"""So long threads of other names are waited for: some run callbacks of Gloo's, some compute for ever."""
_MOST_SECONDS: Final = 1.0


class _Thread(NamedTuple):
    """A thread at one moment: whether it runs or waits for a core, and for how long it did either so far."""

    name: str
    runs: bool
    times: str


def let_gloo_rest() -> None:
    """Release the GIL until no thread of Gloo's is about to let a finished call go, for which it needs the GIL.

    To be called before a group or the interpreter ends. CPython ends a thread that asks for the GIL while the
    interpreter ends, which aborts the process. A thread that lets go a callback which alone holds the group frees the
    group, and aborts as it would wait for itself. One that frees a group with the GIL held waits for a thread that
    waits for the GIL.
    """
    began, before = time.monotonic(), _threads()
    while any(one.name == _NAME for one in before.values()):
        # Who waits for the GIL runs meanwhile, or waits for a core: it is not taken for one at rest.
        time.sleep(_LOOK_SECONDS)
        now, waited = _threads(), time.monotonic() - began
        busy = {one.name for task, one in now.items() if one.runs or one != before.get(task)}
        if not busy or waited > _MOST_SECONDS or (waited > _OTHERS_SECONDS and _NAME not in busy):
            break
        before = now


def _threads() -> dict[str, _Thread]:
    """The other threads of this process, by their numbers."""
    found = {}
    for task in os.listdir("/proc/self/task"):
        if int(task) != threading.get_native_id():
            name, times = (_text(f"/proc/self/task/{task}/{file}") for file in ("comm", "schedstat"))
            stat = stat_of(f"self/task/{task}")
            found[task] = _Thread(name.rstrip("\n"), stat is not None and stat.state == "R", times)
    return found


def _text(path: str) -> str:
    """The text of a file, empty if it is gone."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def thread_frames() -> dict[int, FrameType]:
    """The innermost frame of each thread, by the thread's number; that of the calling thread is the caller's.

    Python holds a lock of its own while it makes them. A collection of garbage that begins meanwhile may wait for that
    lock for ever (https://github.com/python/cpython/issues/106883): none begins.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        frames = sys._current_frames()
    finally:
        if enabled:
            gc.enable()
    frames[threading.get_ident()] = sys._getframe(1)
    return frames
