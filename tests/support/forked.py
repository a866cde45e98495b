"""Programs run on ranks that are forked from an interpreter that has torch already, and judged as a real job is."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from simcoll.blackbox.accounts import read_launch
from simcoll.blackbox.gather import files_of, gather
from simcoll.core.trace import Stall
from simcoll.launch.monitor import LOOK_SECONDS, Monitor
from simcoll.verifier.findings.finding import Report
from simcoll.verifier.postmortem import judge
from tests.support.documents import valid_report

SERVER = Path(__file__).parents[1] / "programs" / "forkserver.py"
LIMIT_SECONDS = 60

T = TypeVar("T")


@dataclass(frozen=True)
class Result:
    """What became of one program."""

    exit_codes: list[int]
    report: Report
    output: str


class ForkServer:
    """The process that forks the ranks; it runs one program at a time."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        command = [sys.executable, str(SERVER)]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=SERVER.parent.parent,
            env={**os.environ, **(environment or {})},
        )

    def run_bare(self, script: Path, out: Path, *, ranks: int, arguments: Sequence[str] = ()) -> list[int]:
        """Run a script without simcoll; the ranks' exit codes. What they print is in ``output.txt``."""
        request = {"script": str(script), "arguments": [*arguments], "ranks": ranks, "limit": LIMIT_SECONDS}
        request |= {"out": str(out)}
        self._send(request)
        return [*self._answer()["exit_codes"]]

    def _send(self, request: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def run(
        self,
        script: Path,
        out: Path,
        *,
        ranks: int,
        stall: float | None = None,
        mode: str = "detail",
        arguments: Sequence[str] = (),
    ) -> Result:
        """Run a script to its end; ``stall`` puts the monitor over it, with that ``--stall``."""
        request = {"script": str(script), "arguments": [*arguments], "ranks": ranks, "mode": mode}
        request |= {"out": str(out), "limit": LIMIT_SECONDS}
        self._send(request)
        seen, ended = (None, set[int]()) if stall is None else self._watch(out, stall)
        answer = self._answer()
        launch = read_launch(out / "launch.json")
        launch = replace(
            launch, ranks=tuple(replace(rank, stopped=rank.stopped or rank.pid in ended) for rank in launch.ranks)
        )
        evidence = gather(files_of(out), [launch])
        report = judge(evidence.traces, evidence.outcome, seen)
        valid_report(report)
        return Result(answer["exit_codes"], report, (out / "output.txt").read_text())

    def _watch(self, out: Path, seconds: float) -> tuple[Stall | None, set[int]]:
        """Look at the job as ``simcoll run`` does until it has ended or is to be ended; which processes that ended."""
        assert self._process.stdout is not None
        monitor = Monitor(out, out / "launch.json", time.time_ns(), seconds, print)
        while not select.select([self._process.stdout], [], [], LOOK_SECONDS)[0]:
            if monitor.look():
                running = {pid for pid in monitor.pids() if _runs(pid)}
                for pid in running:
                    # It may have ended since.
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                return monitor.stall, running
        return None, set()

    def close(self) -> None:
        self._process.communicate()


def _runs(pid: int) -> bool:
    """Whether a process has not ended by itself: a zombie has."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] != "Z"


class Pool:
    """Several servers, each with a thread that gives it one program after the other."""

    def __init__(self, count: int, environment: Mapping[str, str] | None = None) -> None:
        self._environment = environment
        self._own = threading.local()
        self._servers: list[ForkServer] = []
        self._threads = ThreadPoolExecutor(count)

    def submit(self, run: Callable[[ForkServer], T]) -> Future[T]:
        """Have ``run`` called with a server that is free."""
        return self._threads.submit(self._run, run)

    def _run(self, run: Callable[[ForkServer], T]) -> T:
        if not hasattr(self._own, "server"):
            self._own.server = ForkServer(self._environment)
            self._servers.append(self._own.server)
        return run(self._own.server)

    def close(self) -> None:
        """Run nothing more, and end the servers."""
        self._threads.shutdown(cancel_futures=True)
        for server in self._servers:
            server.close()
