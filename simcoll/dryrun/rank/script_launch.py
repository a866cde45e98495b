"""Scripts that start their ranks themselves: ``mp.spawn``, ``elastic_launch``, ``Process`` or pools of processes.

In a dry run each rank of such a script has a process, in which the script starts all of them again. There only the
process's own rank runs: the first two call the function here, and a process that declares another rank in
``init_process_group`` waits until the own one has ended, as it would in the real run. The rank's end is that of the
function or process that declared it. What the script makes of its ranks afterwards, such as of results in a queue, is
no part of a rank: others have put nothing there. A script may call ``mp.spawn`` again, for another job: it is followed
too where it has as many ranks, and left out where it has not.
"""

from __future__ import annotations

import functools
import mmap
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import context, process
from types import FrameType
from typing import Any, NoReturn

import numpy as np
import torch.distributed.launcher.api as elastic
import torch.multiprocessing

from simcoll.backends.engine.outcome import exit_code
from simcoll.core.patches import Patches
from simcoll.core.process import stat_of
from simcoll.core.record import source_document
from simcoll.core.threads import thread_frames
from simcoll.dryrun.rank.event_kinds import OTHER_JOB
from simcoll.errors import ConfigurationError
from simcoll.recorder.failures import note_uncaught
from simcoll.recorder.group_creation import declared
from simcoll.recorder.recorder import Recorder
from simcoll.recorder.session import active_session
from simcoll.recorder.source import current_source, is_program

_OWN, _ENDED, _CODE, _OTHERS = range(4)
_LOOK_SECONDS = 0.05


class ScriptLaunch:
    """The state of a script's launch of its ranks, shared by its processes and the one that supervises them.

    Make it in the supervisor before the fork of the process that runs the script.
    """

    def __init__(self) -> None:
        self._state = np.frombuffer(mmap.mmap(-1, 16), np.int32)
        self._held, self._hold = os.pipe()

    def leave_supervisor(self) -> None:
        """Call this in the process that runs the script."""
        os.close(self._hold)

    def begin_own(self) -> None:
        """Note that this process is the rank from now on."""
        self._state[_ENDED] = 0
        self._state[_OWN] = os.getpid()

    def end_own(self, code: int) -> None:
        """The program of the rank has ended with an exit code."""
        if self.is_own() and not self._state[_ENDED]:
            self._state[_CODE] = code
            self._state[_ENDED] = 1

    def is_own(self) -> bool:
        """True in the process that is the rank."""
        return int(self._state[_OWN]) == os.getpid()

    def await_own(self) -> None:
        """Wait as another rank until the own one has ended."""
        self._state[_OTHERS] = 1
        os.read(self._held, 1)

    @property
    def has_others_only(self) -> bool:
        """True if other ranks wait, and the own one has not begun."""
        return bool(self._state[_OTHERS]) and not self._state[_OWN]

    @property
    def has_ended(self) -> bool:
        """True once the program of the rank has ended, or its process has gone."""
        own = int(self._state[_OWN])
        return bool(own) and (bool(self._state[_ENDED]) or (stat := stat_of(own)) is None or stat.state == "Z")

    @property
    def exit_code(self) -> int | None:
        """The exit code of the rank's program; None where it has none."""
        return int(self._state[_CODE]) if self._state[_OWN] and self._state[_ENDED] else None

    def release(self) -> None:
        """Let other ranks end, as the supervisor."""
        if self._hold >= 0:
            os.close(self._hold)
            self._hold = -1


class _OtherJobError(BaseException):
    """The function that ``mp.spawn`` was given belongs to a job of another ``size`` than the one before."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.size = size


def _other_job_behind(error: BaseException | None) -> _OtherJobError | None:
    """The sign of another job in an exception, or in those that it took the place of, as in a program's ``finally``."""
    while error is not None and not isinstance(error, _OtherJobError):
        error = error.__context__
    return error


class RankOfScript:
    """Follows this rank only of those that its script starts, and checks the rank that the script declares."""

    def __init__(self, rank: int, world_size: int, launch: ScriptLaunch) -> None:
        self.rank, self.world_size = rank, world_size
        self._launch = launch
        self._pid = os.getpid()
        self._has_place = self._has_followed = self._spawns = False

    def install(self, patches: Patches) -> None:
        """Let processes that this one starts have its fake torch.distributed, not a real one."""
        for name in ("spawn", "start_processes"):
            for module in (torch.multiprocessing, sys.modules["torch.multiprocessing.spawn"]):
                patches.wrap(module, name, self._in_this_process)
        patches.wrap(elastic, "launch_agent", self._agent_of_this_process)
        forked: Any = context.ForkProcess
        for kind in (context.SpawnProcess, context.ForkServerProcess):
            patches.replace(kind, "_Popen", staticmethod(forked._Popen))
        patches.wrap(process.BaseProcess, "_bootstrap", self._followed_process)

    def _in_this_process(self, spawn: Callable[..., Any]) -> Callable[..., Any]:
        """Let ``spawn`` call the function here, for the one process of ``nprocs`` that is this rank."""

        @functools.wraps(spawn)
        def call(
            fn: Callable[..., Any], args: tuple[Any, ...] = (), nprocs: int = 1, join: bool = True, *_: Any, **__: Any
        ) -> Any:
            self._launch.begin_own()
            self._spawns = True
            try:
                self._followed(fn)(self.rank % nprocs, *args)
            except BaseException as error:
                other = _other_job_behind(error)
                if other is None and not (isinstance(error, SystemExit) and not error.code):
                    raise
                if other is not None and (recorder := self._recorder()) is not None:
                    recorder.event(OTHER_JOB, size=other.size, source=source_document(current_source()))
            finally:
                self._spawns = False
            self._has_followed = self._has_place
            return None if join else _Ended()

        return call

    def _agent_of_this_process(self, launch: Callable[..., Any]) -> Callable[..., Any]:
        """Let torchrun's agent call the function here; the variables of its process are set already."""

        @functools.wraps(launch)
        def call(config: Any, entrypoint: Any, args: Sequence[Any], *more: Any, **options: Any) -> Any:
            if not callable(entrypoint):
                return launch(config, entrypoint, args, *more, **options)
            self._launch.begin_own()
            return {self.rank: self._followed(entrypoint)(*args)}

        return call

    def _followed_process(self, bootstrap: Callable[..., int]) -> Callable[..., int]:
        @functools.wraps(bootstrap)
        def run(started: Any, *args: Any, **kwargs: Any) -> int:
            started.run = self._followed(started.run)
            return bootstrap(started, *args, **kwargs)

        return run

    def _followed(self, program: Callable[..., Any]) -> Callable[..., Any]:
        """A function that may be the rank's program, which notes how it ends."""

        def run(*args: Any) -> Any:
            code = 0
            try:
                return program(*args)
            except BaseException as error:
                if _other_job_behind(error) is None:
                    code = exit_code(error)
                    if os.getpid() != self._pid:
                        self._note(error)
                raise
            finally:
                self._launch.end_own(code)

        return run

    def _note(self, error: BaseException) -> None:
        """Record the exception that ends the rank, in a process that catches it."""
        if not isinstance(error, SystemExit) and (recorder := self._recorder()) is not None:
            note_uncaught(recorder, error, error.__traceback__)

    def _recorder(self) -> Recorder | None:
        session = active_session() if self._launch.is_own() else None
        return None if session is None else session.current_recorder()

    def place(self, given: Mapping[str, Any]) -> tuple[int, int]:
        """The rank and world size that a call of ``init_process_group`` declares, or else the environment.

        Raises :class:`ConfigurationError` where they are not those of the dry run. In a process that the script has
        started for another rank, it waits for the end of this one, and ends the process.
        """
        number, size = _declared(given, "rank"), _declared(given, "world_size")
        started = os.getpid() != self._pid
        if (number, size) == (self.rank, self.world_size):
            if started and not self._launch.is_own():
                self._launch.begin_own()
                self._follow_worker()
            self._has_place = True
            return number, size
        if started and size == self.world_size:
            self._end_as_other()
        if self._has_followed and self._spawns and size != self.world_size and not started:
            raise _OtherJobError(size)
        advice = "have it take both from RANK and WORLD_SIZE"
        if size != self.world_size:
            advice += f", or give --world-size {size}"
        raise ConfigurationError(
            f"rank {self.rank}: the script says that it is rank {number} of {size}, and this is a dry run of "
            f"{self.world_size}: {advice}"
        )

    def _end_as_other(self) -> NoReturn:
        self._launch.await_own()
        sys.stdout.flush()
        os._exit(0)

    def _follow_worker(self) -> None:
        """Notice the return of the rank's function where a pool has called it, whose process goes on."""
        frame = _program_of_process(sys._getframe())
        caller = None if frame is None else frame.f_back
        if frame is not None and caller is not None and caller.f_code.co_filename not in (__file__, process.__file__):
            threading.Thread(target=self._await_return, args=(threading.get_ident(), frame), daemon=True).start()

    def _await_return(self, thread: int, program: FrameType) -> None:
        while (frame := thread_frames().get(thread)) is not None and _program_of_process(frame) is program:
            time.sleep(_LOOK_SECONDS)
        self._launch.end_own(0)


_BOOTSTRAP = process.BaseProcess._bootstrap.__code__  # type: ignore[attr-defined]


def _program_of_process(frame: FrameType | None) -> FrameType | None:
    """The outermost frame of the program in a process that it has started; those of its parent are further out."""
    found = None
    while frame is not None and frame.f_code is not _BOOTSTRAP:
        found, frame = frame if is_program(frame) else found, frame.f_back
    return found


class _Ended:
    """The result of ``spawn`` with ``join=False``: the process has ended already."""

    processes: tuple[object, ...] = ()

    def join(self, *_: object, **__: object) -> bool:
        """True: all have ended."""
        return True

    def pids(self) -> list[int]:
        """Empty: no process has been started."""
        return []


def _declared(given: Mapping[str, Any], name: str) -> int:
    return int(os.environ[name.upper()]) if (number := declared(given, name)) is None else number
