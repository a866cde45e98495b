"""Dry runs one after the other, from one interpreter that has torch already: importing it costs more than most of them.

Each line on stdin is a request, ``{"arguments": ["--world-size", "4", "train.py"], "out": folder}``; each line on
stdout answers one with the exit code. The folder gets what ``simcoll preflight`` leaves there.
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

from simcoll.evidence import gather
from simcoll.verifier.trace import Trace

ROOT = Path(__file__).resolve().parent.parent


class DryRuns:
    """The process that makes them; each is made once, whoever asks for it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made: dict[tuple[str, ...], tuple[int, Path]] = {}
        command = [sys.executable, "-m", "tests.preflights"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)

    def run(self, *arguments: object) -> tuple[int, Path]:
        """Run ``simcoll preflight`` with these arguments; its exit code, and the folder."""
        words = tuple(map(str, arguments))
        if words not in self._made:
            out = self._folder / str(len(self._made))
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._process.stdin.write(json.dumps({"arguments": words, "out": str(out)}) + "\n")
            self._process.stdin.flush()
            self._made[words] = int(self._process.stdout.readline()), out
        return self._made[words]

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
        self._process.communicate()


def serve() -> None:
    """Answer requests until there are no more."""
    import torch.distributed

    from simcoll.warm_torch import warm_up

    assert torch.distributed.is_available()
    warm_up()
    for line in sys.stdin:
        request = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _answer(request["arguments"], Path(request["out"]))
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


def _answer(arguments: Sequence[str], out: Path) -> None:
    """Be the command."""
    from simcoll.cli import main

    code = 1
    try:
        out.mkdir()
        written = os.open(out / "shown.txt", os.O_WRONLY | os.O_CREAT)
        os.dup2(written, 1)
        os.dup2(written, 2)
        code = main(["preflight", "--out", str(out), *arguments])
        sys.stdout.flush()
    finally:
        os._exit(code)


if __name__ == "__main__":
    serve()
