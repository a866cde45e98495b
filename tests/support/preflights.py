"""Dry runs from one interpreter that has torch already: importing it costs more than most of them.

Each line on stdin is a request, ``{"number": 0, "arguments": ["--world-size", "4", "train.py"], "out": folder}``; each
line on stdout says how one has ended, by its number and its exit code. Two run at a time. The folder gets what
``simcoll preflight`` leaves there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from simcoll.blackbox.gather import gather
from simcoll.core.trace import Trace
from tests.support.warm import collapse_memory

ROOT = Path(__file__).resolve().parents[2]


AT_A_TIME = 2


class DryRuns:
    """The process that makes them; each is made once, whoever asks for it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._begun: dict[tuple[str, ...], int] = {}
        self._codes: dict[int, int] = {}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.preflights"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
        )

    def begin(self, *arguments: object) -> tuple[int, Path]:
        """Have ``simcoll preflight`` run with these arguments, soon; its number, and the folder."""
        words = tuple(map(str, arguments))
        new = words not in self._begun
        number = self._begun.setdefault(words, len(self._begun))
        out = self._folder / str(number)
        if new:
            assert self._process.stdin is not None
            out.mkdir()
            self._process.stdin.write(json.dumps({"number": number, "arguments": words, "out": str(out)}) + "\n")
            self._process.stdin.flush()
        return number, out

    def run(self, *arguments: object) -> tuple[int, Path]:
        """Wait for the end of such a run; its exit code, and the folder."""
        number, out = self.begin(*arguments)
        assert self._process.stdout is not None
        while number not in self._codes:
            line = self._process.stdout.readline()
            assert line, f"the dry runs ended before number {number}"
            ended, code = map(int, line.split())
            self._codes[ended] = code
        return self._codes[number], out

    def report(self, *arguments: object) -> dict[str, Any]:
        """The report of such a run, with its exit code as ``exit_code``."""
        code, out = self.run(*arguments)
        document: dict[str, Any] = json.loads((out / "report.json").read_text(encoding="utf-8"))
        return document | {"exit_code": code}

    def traces(self, *arguments: object) -> tuple[Trace, ...]:
        """What the ranks of such a run have recorded."""
        return gather([self.run(*arguments)[1]]).traces

    def __enter__(self) -> DryRuns:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if len(self._codes) < len(self._begun):
            self._process.kill()
        self._process.communicate()


def serve() -> None:
    """Answer requests until there are no more."""
    import torch.distributed

    from simcoll.dryrun.prepared_imports import warm_up

    assert torch.distributed.is_available()
    warm_up()
    collapse_memory()  # what this process has written to since it was forked has no part in huge pages
    running = 0
    for line in sys.stdin:
        if running == AT_A_TIME:
            os.wait()
            running -= 1
        if os.fork() == 0:
            _attend(json.loads(line))
        running += 1
    while running:
        os.wait()
        running -= 1


def _attend(request: dict[str, Any]) -> None:
    """Be the process that sees one through to its end, whatever that is, and tells of it."""
    pid = os.fork()
    if pid == 0:
        _be_one(request["arguments"], Path(request["out"]))
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    # One write: two of these may tell at a time.
    os.write(1, f"{request['number']} {code}\n".encode())
    os._exit(0)


def _be_one(arguments: Sequence[str], out: Path) -> None:
    """Be the command."""
    from simcoll.cli import main

    code = 1
    try:
        written = os.open(out / "shown.txt", os.O_WRONLY | os.O_CREAT)
        os.dup2(written, 1)
        os.dup2(written, 2)
        code = main(["preflight", "--out", str(out), *arguments])
        sys.stdout.flush()
    finally:
        os._exit(code)


if __name__ == "__main__":
    serve()
