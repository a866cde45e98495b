"""Ranks as real processes on real Gloo, forked from a test's own process, so that they run functions of any kind.

Each rank records in ``detail`` mode and sends back, through a pipe, its program's result or exception. The parent
watches as ``simcoll run`` does: a failed rank ends the others, and so does a proven deadlock.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar, cast

import torch.distributed as dist

from simcoll.backends.engine.outcome import Outcome
from simcoll.backends.engine.tickets import PeerFailedError, passes_through
from simcoll.blackbox.accounts import read_launch
from simcoll.blackbox.gather import files_of, gather
from simcoll.core.clock import now_ns
from simcoll.core.process import reap
from simcoll.core.ranges import ranks_text
from simcoll.core.trace import MemoryTrace
from simcoll.errors import ConfigurationError
from simcoll.launch.fork import fork
from simcoll.launch.monitor import Monitor
from simcoll.testing.failures import report_text
from simcoll.testing.gloo_rank import become_rank, receive_answer, run_store
from simcoll.verifier.findings.finding import errors_of
from simcoll.verifier.postmortem import judge

T = TypeVar("T")

_LOOK_SECONDS = 0.05
_PATIENCE_SECONDS = 2.0
"""The time without progress after which the job is checked for a deadlock; a rank that computes is left alone."""

_GRACE_SECONDS = 1.0
"""The time the other ranks may run on after the first failure, to record what they see of it."""


@dataclass(slots=True)
class _Rank:
    """One rank's process, as its parent sees it."""

    rank: int
    pid: int
    pipe: Connection
    answer: tuple[str, Any] | None = None
    exit_code: int | None = None
    ended_ns: int = 0
    stopped: bool = False

    def look(self) -> None:
        """Note whether the process has ended."""
        pid, status = os.waitpid(self.pid, os.WNOHANG) if self.exit_code is None else (0, 0)
        if pid:
            self.exit_code, self.ended_ns = os.waitstatus_to_exitcode(status), now_ns()

    def stop(self) -> None:
        """End the process."""
        self.stopped = True
        self.exit_code = reap(self.pid)
        self.ended_ns = now_ns()

    def error(self) -> BaseException | None:
        """The exception of a process that failed; None otherwise."""
        if self.answer is not None and self.answer[0] == "error":
            return cast(BaseException, self.answer[1])
        if self.stopped:
            return PeerFailedError(f"rank {self.rank} was ended, because the job could not go on")
        if self.exit_code:
            return ChildProcessError(f"rank {self.rank} ended with {_ending(self.exit_code)}")
        return None

    def entry(self) -> dict[str, object]:
        """The process's entry in the launch file."""
        return {
            "rank": self.rank,
            "local_rank": self.rank,
            "pid": self.pid,
            "exit_code": self.exit_code,
            "ended_ns": self.ended_ns,
            "stopped": self.stopped,
            "message": "",
        }


def _ending(exit_code: int) -> str:
    return f"exit code {exit_code}" if exit_code > 0 else signal.Signals(-exit_code).name


def run_forked(world_size: int, body: Callable[[int], T], *, timeout: float, values: str | None = None) -> Outcome[T]:
    """Run ``body(rank)`` in ``world_size`` processes with a default Gloo group, and judge their records.

    Raises TimeoutError where ranks have not ended after ``timeout`` seconds and there is no finding, and
    :class:`~simcoll.errors.ConfigurationError` where this process is a rank itself.
    """
    if dist.is_initialized():
        raise ConfigurationError(
            "backend 'gloo' forks ranks from this process, which has a default process group itself:"
            " call torch.distributed.destroy_process_group() first"
        )
    with TemporaryDirectory(prefix="simcoll-") as name, _store() as port:
        job = _Job(Path(name), world_size, time.monotonic() + timeout)
        try:
            job.start(body, port, timeout, values)
            job.watch()
        finally:
            job.stop()
        return job.outcome(timeout)


@contextmanager
def _store() -> Iterator[int]:
    """The port of a store in a process of its own, which outlives every rank."""
    ours, theirs = Pipe()
    pid = fork()
    if pid == 0:
        ours.close()
        run_store(theirs)
    theirs.close()
    try:
        yield ours.recv()
    finally:
        reap(pid)
        ours.close()


@dataclass(slots=True)
class _Job:
    """All ranks of one run; ``deadline`` is on the monotonic clock."""

    folder: Path
    size: int
    deadline: float
    ranks: list[_Rank] = field(default_factory=list)
    timed_out: list[int] = field(default_factory=list)
    monitor: Monitor | None = None

    def start(self, body: Callable[[int], object], port: int, timeout: float, values: str | None) -> None:
        """Fork the ranks."""
        since = now_ns()
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()
        for rank in range(self.size):
            ours, theirs = Pipe(duplex=False)
            pid = fork()
            if pid == 0:
                become_rank(body, rank, self.size, port, theirs, self.folder, timeout, values)
            theirs.close()
            self.ranks.append(_Rank(rank, pid, ours))
        self._write_launch_file()
        self.monitor = Monitor(self.folder, self._launch_file, since, None, _ignore, patience=_PATIENCE_SECONDS)

    def watch(self) -> None:
        """Wait until all ranks have ended, one has failed, or the job is blocked."""
        while running := self._running():
            self._receive(running)
            if any(rank.exit_code for rank in self.ranks) or any(_skips(rank) for rank in self.ranks):
                self._wait_for_end(_GRACE_SECONDS)
                return
            if time.monotonic() > self.deadline:
                self.timed_out = [rank.rank for rank in running]
                if self.monitor is not None:
                    self.monitor.interrupted()
                return
            if self.monitor is not None and self.monitor.look():
                return

    def stop(self) -> None:
        """End the ranks that still run, and write the launch file."""
        for rank in self.ranks:
            rank.look()
            if rank.exit_code is None:
                rank.stop()
        self._receive([])
        for rank in self.ranks:
            rank.pipe.close()
        self._write_launch_file()

    def outcome(self, timeout: float) -> Outcome[Any]:
        """Judge the ranks' records."""
        records = gather(files_of(self.folder), [read_launch(self._launch_file)], workers=0)
        stall = None if self.monitor is None else self.monitor.stall
        report = judge(records.traces, records.outcome, stall)
        failed = any(rank.error() is not None and not rank.stopped for rank in self.ranks)
        if self.timed_out and not failed and not errors_of(report.findings):
            problem = f"{ranks_text(self.timed_out)} of {self.size} did not end within {timeout:g} s"
            raise TimeoutError(f"{problem}\n{report_text(report)}")
        results = {
            rank.rank: rank.answer[1] for rank in self.ranks if rank.answer is not None and rank.answer[0] == "result"
        }
        return Outcome(report, results, _errors(self.ranks), cast(Sequence[MemoryTrace], records.traces))

    @property
    def _launch_file(self) -> Path:
        return self.folder / "launch.json"

    def _running(self) -> list[_Rank]:
        for rank in self.ranks:
            rank.look()
        return [rank for rank in self.ranks if rank.exit_code is None]

    def _wait_for_end(self, seconds: float) -> None:
        end = min(self.deadline, time.monotonic() + seconds)
        while (running := self._running()) and time.monotonic() < end:
            self._receive(running)

    def _receive(self, running: Sequence[_Rank]) -> None:
        """Receive the answers of ranks, so that none waits for its pipe; waits a moment if any rank runs."""
        pipes = {rank.pipe: rank for rank in self.ranks if rank.answer is None}
        for pipe in wait(list(pipes), _LOOK_SECONDS if running else 0):
            rank = pipes[cast(Connection, pipe)]
            rank.answer = receive_answer(rank.pipe)
        if running and not pipes:
            time.sleep(_LOOK_SECONDS)

    def _write_launch_file(self) -> None:
        document = {
            "schema": "simcoll.launch/1",
            "node": 0,
            "world_size": self.size,
            "ranks": [one.entry() for one in self.ranks],
        }
        self._launch_file.write_text(json.dumps(document), encoding="utf-8")


def _skips(rank: _Rank) -> bool:
    """True if a rank skips the test."""
    error = rank.error() if rank.answer is not None else None
    return error is not None and passes_through(error)


def _errors(ranks: Sequence[_Rank]) -> Mapping[int, BaseException]:
    errors = {rank.rank: rank.error() for rank in ranks}
    return {rank: error for rank, error in errors.items() if error is not None}


def _ignore(line: str) -> None:
    """Drop the monitor's messages: the end of a test shows the report."""
