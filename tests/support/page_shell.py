"""The shell in which a page's commands run: one bash, an environment of its own, and nothing that outlives the page."""

from __future__ import annotations

import contextlib
import os
import select
import shlex
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.support import warm

LIMIT = 400.0
"""Seconds that a command may take, also on a machine that others use."""

PATIENCE = 10.0
"""Seconds in which what a page has started may end after its last command."""


@dataclass(frozen=True, slots=True)
class Ran:
    """How a command ended: its exit code, None if it took too long, and its stdout and stderr as they came."""

    code: int | None
    output: str


class Shell:
    """A bash that is given one command after the other, as by somebody who reads the page.

    What ``cd``, ``export`` and ``&`` do holds for the commands that follow. A command in the background is cold:
    a warm process would be the one that runs it, and ``$!`` another one.
    """

    def __init__(self, folder: Path, home: Path, limit: float = LIMIT) -> None:
        home.mkdir()
        self._warm: dict[str, str] = {}
        self._handles: list[int] = []
        if warm.COLD_VARIABLE not in os.environ:
            self._warm, handle = warm.WARM.for_shell(home.parent / "warm")
            self._handles = [handle]
        self._folder, self._home, self._limit = folder, home, limit
        self._ran = 0
        self._start()

    def run(self, command: str) -> Ran:
        """Run one command, its lines joined; stdin is empty."""
        if self._bash.poll() is not None:
            self._start()
        self._ran += 1
        if command.rstrip().endswith("&"):
            command = f"PATH={shlex.quote(self._cold_path())} {command}"
        printed = self._home / f"printed-{self._ran}.txt"
        words = f"exec >{shlex.quote(str(printed))} 2>&1\neval {shlex.quote(command)} </dev/null 3>&-\necho $? >&3\n"
        assert self._bash.stdin is not None
        self._bash.stdin.write(words.encode())
        self._bash.stdin.flush()
        code = self._answer()
        return Ran(code, printed.read_text(encoding="utf-8", errors="replace"))

    def close(self) -> tuple[str, ...]:
        """End it; the command lines of processes that it leaves behind, which are killed."""
        self._end()
        left = self._started()
        for pid in left:
            _await(pid, PATIENCE)
        stays = self._started()
        self._kill()
        return tuple(stays.values())

    def environment(self) -> dict[str, str]:
        """What a page's programs find, whoever runs the tests: a home, a width, this interpreter first."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "SIMCOLL", "PET_"))}
        return kept | {
            "PATH": self._cold_path(),
            "HOME": str(self._home),
            "COLUMNS": "80",
            "LC_ALL": "C.UTF-8",
            "NO_COLOR": "1",
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
            # torchrun's own default is one port for all, and tests run beside each other.
            "PET_MASTER_PORT": str(_free_port()),
            **self._warm,
        }

    def _cold_path(self) -> str:
        return f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"

    def _start(self) -> None:
        self._status, write = os.pipe()
        fd = shlex.quote(str(write))
        self._bash = subprocess.Popen(
            ["bash", "-c", f"exec 3>&{fd} {fd}>&-; exec bash -s"],
            cwd=self._folder,
            env=self.environment(),
            stdin=subprocess.PIPE,
            pass_fds=(write, *self._handles),
            start_new_session=True,
        )
        os.close(write)

    def _answer(self) -> int | None:
        """The exit code that bash writes, or its own if the command ended it."""
        if not select.select([self._status], [], [], self._limit)[0]:
            self._kill()
            self._end()
            return None
        told = os.read(self._status, 16).decode()
        if told:
            return int(told)
        self._end()
        return self._bash.returncode

    def _end(self) -> None:
        assert self._bash.stdin is not None
        with contextlib.suppress(OSError):
            self._bash.stdin.close()
        self._bash.wait()
        with contextlib.suppress(OSError):
            os.close(self._status)

    def _started(self) -> dict[int, str]:
        """Every process with this page's home, in whatever session it is: launchers make sessions of their own.

        A fork of the warm process has that one's environment there, and a folder of the page's.
        """
        mark = f"HOME={self._home}".encode()
        found = {}
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError):
                if mark in (entry / "environ").read_bytes().split(b"\0") or self._is_in_page(entry):
                    words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
                    found[int(entry.name)] = " ".join(words).strip()
        return found

    def _is_in_page(self, process: Path) -> bool:
        return (process / "cwd").readlink().is_relative_to(self._folder)

    def _kill(self) -> None:
        for pid in self._started():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _await(pid: int, seconds: float) -> None:
    with contextlib.suppress(ProcessLookupError):
        handle = os.pidfd_open(pid)
        select.select([handle], [], [], seconds)
        os.close(handle)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port
