"""Dry runs of many scripts from one interpreter that has torch already: ``python -m tests.dry_runs FOLDER REQUESTS``.

``REQUESTS`` is a JSON list of script, world size and the ranks that run (null: those that ``auto`` chooses). Each
leaves its ``report.json`` in a folder that its number names. Two run at a time, each in a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
AT_A_TIME = 2
TIMEOUT = 60.0


class DryRuns:
    """Dry runs that go on in the background, in the order in which they were asked for."""

    def __init__(self, folder: Path, requests: Sequence[tuple[Path, int, list[int] | None]]) -> None:
        self._folder = folder
        text = json.dumps([(str(script), size, ranks) for script, size, ranks in requests])
        command = [sys.executable, "-m", "tests.dry_runs", str(folder), text]
        self._process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        self._ended: set[int] = set()

    def report(self, number: int) -> dict[str, Any]:
        """The report of one of them, when it is there, with ``exit_code`` added."""
        assert self._process.stdout is not None
        while number not in self._ended:
            line = self._process.stdout.readline()
            assert line, f"the dry runs ended before number {number}"
            self._ended.add(int(line))
        document: dict[str, Any] = json.loads((self._folder / str(number) / "report.json").read_text())
        return document

    def close(self) -> None:
        """End what still runs."""
        self._process.kill()
        self._process.communicate()


def main(folder: Path, requests: Sequence[tuple[str, int, list[int] | None]]) -> None:
    """Run them all, and tell the number of each that has ended."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    from simcoll.forked_rank import fork
    from simcoll.warm_torch import warm_up

    warm_up()
    running: dict[int, int] = {}
    for number, (script, size, ranks) in enumerate(requests):
        if len(running) == AT_A_TIME:
            _one_ends(running)
        if (pid := fork()) == 0:
            _be_one(Path(script), size, ranks, folder / str(number))
        running[pid] = number
    while running:
        _one_ends(running)


def _one_ends(running: dict[int, int]) -> None:
    pid, _ = os.wait()
    print(running.pop(pid), flush=True)


def _be_one(script: Path, size: int, ranks: list[int] | None, folder: Path) -> None:
    from simcoll.lone_rank import DryRun
    from simcoll.preflight import Plan, preflight
    from simcoll.reports.json_report import json_report
    from simcoll.verifier.postmortem import exit_code

    try:
        folder.mkdir()
        report = preflight(DryRun(script, (), size, size, folder), Plan(ranks, TIMEOUT, 1))
        document = json_report(report) | {"exit_code": exit_code(report)}
        (folder / "report.json").write_text(json.dumps(document))
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
