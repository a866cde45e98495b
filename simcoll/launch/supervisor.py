"""Runs the launcher's process: forwards signals, ends the job, and kills the orphans that the job leaves behind.

torch's Flight Recorder writes its dumps beside the black boxes of ``simcoll run``, unless the user sets another place
(:func:`with_dumps_in`).
"""

from __future__ import annotations

import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO, Final, Protocol

from simcoll.blackbox.file_kinds import DUMPS
from simcoll.blackbox.stacks import ask_for_dump
from simcoll.core.process import adopt_orphans, children, kill, kill_children

_FILES: Final = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
"""The variables that torch reads for it, newest first (``DebugInfoWriter::getWriter`` in FlightRecorder.cpp)."""


def with_dumps_in(folder: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of a job whose ranks dump into a folder that exists, where they dump at all.

    torch 2.11 and newer record their last 2,000 calls and dump them when a collective fails, unless that is switched
    off; only the folder is changed.
    """
    if any(environment.get(name) for name in _FILES):
        return dict(environment)
    return {**environment, _FILES[0]: str(folder / DUMPS)}


_ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LOOK_SECONDS = 0.5
_GENTLE_SECONDS = 1.5
"""Seconds that the launcher has to end a job that was given up, and once more after its ranks were killed."""

PATIENCE_SECONDS = 5.0
"""After an interrupt, how long ranks may take before they are terminated: one that sits in C++ never sees a SIGINT."""


@dataclass(frozen=True, slots=True)
class JobEnd:
    """The end of the launcher: its exit code, and the number of the signal that ended the job from outside, if any."""

    exit_code: int
    signal: int | None


class Watch(Protocol):
    """An observer of a running job from outside."""

    def look(self) -> bool:
        """True if the job is to be ended now."""
        ...

    def pids(self) -> Sequence[int]:
        """The ranks' processes on this node."""
        ...

    def interrupted(self) -> None:
        """The job is about to be ended by a signal; called in its handler, at any moment."""
        ...


def run_job(
    command: Sequence[str],
    environment: Mapping[str, str],
    stdout: IO[bytes] | int | None = None,
    watch: Watch | None = None,
) -> JobEnd:
    """Run the launcher to its end, passing on SIGINT, SIGTERM and SIGHUP, and ending the job when ``watch`` says so.

    The launcher has a session of its own, so that Ctrl-C reaches the ranks once, through torch's agent. The first
    signal ends the job as torchrun ends it, a second one at once; SIGUSR1 has the ranks write their stacks. Where a job
    does not end well, all processes left by its ranks are killed; daemons of a clean job are the program's business.
    """
    before = children()
    adopt_orphans()
    process = subprocess.Popen(command, env=dict(environment), stdout=stdout, start_new_session=True)
    received: list[int] = []
    with _passing_on(process, received, watch), _asking_for_dumps(watch):
        exit_code = process.wait() if watch is None else _wait_watching(process, watch)
    if exit_code != 0 or received:
        kill_children(before)
    return JobEnd(exit_code, received[0] if received else None)


def _wait_watching(process: subprocess.Popen[bytes], watch: Watch) -> int:
    while True:
        try:
            return process.wait(_LOOK_SECONDS)
        except subprocess.TimeoutExpired:
            if watch.look():
                return _end(process, watch)


def _end(process: subprocess.Popen[bytes], watch: Watch) -> int:
    """End the launcher and its ranks, whatever these do: torch's agent waits long for a rank that does not react."""
    pids = list(watch.pids())
    process.terminate()
    try:
        return process.wait(_GENTLE_SECONDS)
    except subprocess.TimeoutExpired:
        for pid in pids:
            kill(pid)
    try:
        return process.wait(_GENTLE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


@contextmanager
def _passing_on(process: subprocess.Popen[bytes], received: list[int], watch: Watch | None) -> Iterator[None]:
    """Pass ending signals on to the launcher while it runs."""
    timer = threading.Timer(PATIENCE_SECONDS, process.terminate)
    timer.daemon = True

    def pass_on(number: int, frame: FrameType | None) -> None:
        del frame
        received.append(number)
        if len(received) == 1:
            if watch is not None:
                watch.interrupted()
            process.send_signal(number)
            timer.start()
        else:
            # The user does not want to wait: without the launcher the ranks are orphans, and those are killed.
            process.kill()

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # Signals that nohup or a shell's background job ignores stay ignored.
    handled = [number for number in _ENDING_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    previous = {number: signal.signal(number, pass_on) for number in handled}
    try:
        yield
    finally:
        timer.cancel()
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextmanager
def _asking_for_dumps(watch: Watch | None) -> Iterator[None]:
    """Pass SIGUSR1 on to the ranks of this node while they run."""

    def ask(number: int, frame: FrameType | None) -> None:
        del number, frame
        for pid in watch.pids() if watch is not None else ():
            ask_for_dump(pid)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGUSR1, ask)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, previous)
