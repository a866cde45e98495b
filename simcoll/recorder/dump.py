"""``simcoll.dump``: this rank's records so far, and the stacks of its threads, as files, while the job runs."""

from __future__ import annotations

import linecache
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from simcoll.blackbox.box import NoBox
from simcoll.blackbox.format import SUFFIX
from simcoll.blackbox.stacks import DUMP_SUFFIX
from simcoll.blackbox.writer import BlackBoxWriter
from simcoll.core.threads import thread_frames
from simcoll.errors import ConfigurationError, SimcollError

if TYPE_CHECKING:
    from simcoll.recorder.recorder import Recorder

_MOST_FRAMES = 200


def dump(dir: str | os.PathLike[str] | None = None) -> Path:  # noqa: A002
    """Write this rank's black box as it is now, and the stacks of its threads, into a folder, which is returned.

    ``dir`` is the folder (default: that of the recording); it is made where it is not there. The files are
    ``rank00003.simcoll`` and ``rank00003.stacks.txt``, to whose end stacks are added. In the recording's own folder the
    black box is there already, and is flushed to the disk.

    Any thread may call it, and so may a signal handler. Raises :class:`~simcoll.errors.ConfigurationError` where this
    process records nothing, and :class:`~simcoll.errors.SimcollError` where the folder cannot be written.
    """
    recorder = _recorder()
    box = recorder.box
    if isinstance(box, NoBox):
        raise SimcollError(f"rank {recorder.rank}: nothing to dump: its black box could not be made, as was said then")
    if not isinstance(box, BlackBoxWriter):
        raise SimcollError(f"rank {recorder.rank}: nothing to dump: it is a thread, and its records are in the outcome")
    folder = box.path.parent if dir is None else Path(dir).absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_stacks(folder / stacks_name(box.path.name), f"rank {recorder.rank}")
        box.save(folder / box.path.name)
    except OSError as error:
        reason = error.strerror or str(error)
        advice = "give a folder that this rank may write to and that has room, as simcoll.dump(folder)"
        raise SimcollError(f"rank {recorder.rank}: cannot dump into {folder}: {reason}; {advice}") from error
    return folder


def stacks_name(box_name: str) -> str:
    """The name of the file of stacks that goes with a black box."""
    return box_name.removesuffix(SUFFIX) + DUMP_SUFFIX


def write_stacks(path: Path, who: str) -> None:
    """Add the stacks of all threads of this process to the end of a text file; raises OSError.

    :func:`simcoll.blackbox.stacks.read_stacks` reads it: the form is that of ``faulthandler``, with names and source
    code.
    """
    text = heading(who) + "".join(_stacks())
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    with open(fd, "w", encoding="utf-8", errors="backslashreplace") as file:
        file.write(text)


def heading(who: str) -> str:
    """The line above stacks: their process, and the time at which they were written."""
    moment = time.strftime("%Y-%m-%d %H:%M:%S %z")
    return f"simcoll: {moment}, process {os.getpid()} on {os.uname().nodename}, stacks of {who}\n"


def _recorder() -> Recorder:
    # A process that records has imported the session already; a process that does not may have no torch.
    session = sys.modules.get("simcoll.recorder.session")
    if session is None:
        raise _nothing_recorded("simcoll is not enabled in it")
    active = session.active_session()
    found: Recorder | None = None if active is None else active.current_recorder()
    if found is None:
        recorders: list[Recorder] = session.own_recorders()
        if not recorders:
            raise _nothing_recorded("it has made no process group since simcoll was enabled")
        found = recorders[-1]
    return found


def _nothing_recorded(reason: str) -> ConfigurationError:
    return ConfigurationError(
        f"nothing to dump: process {os.getpid()} records nothing ({reason}); set SIMCOLL_MODE=record, or call "
        'simcoll.enable("record"), before the rank makes its groups'
    )


def _stacks() -> Iterator[str]:
    """Each thread's frames, innermost first; the main thread comes last, as in ``faulthandler``."""
    own, main = threading.get_ident(), threading.main_thread().ident
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = thread_frames()
    for ident in sorted(frames, key=lambda ident: ident == main):
        whose = "Current thread" if ident == own else "Thread"
        yield f"{whose} 0x{ident:016x} (most recent call first): {names.get(ident, 'not made by Python')}\n"
        yield from _lines(_caller(frames[ident]) if ident == own else frames[ident])


def _caller(frame: FrameType | None) -> FrameType | None:
    while frame is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    return frame


def _lines(frame: FrameType | None) -> Iterator[str]:
    count = 0
    while frame is not None:
        if count == _MOST_FRAMES:
            yield "  ...\n"
            return
        code, line = frame.f_code, frame.f_lineno or 0
        yield f'  File "{code.co_filename}", line {line} in {code.co_name}\n'
        text = linecache.getline(code.co_filename, line, frame.f_globals).strip()
        yield f"    {text}\n" if text else ""
        frame, count = frame.f_back, count + 1
