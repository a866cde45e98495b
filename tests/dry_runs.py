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


def dry_runs(folder: Path, requests: Sequence[tuple[Path, int, list[int] | None]]) -> list[dict[str, Any]]:
    """The report of each, with ``exit_code`` added."""
    text = json.dumps([(str(script), size, ranks) for script, size, ranks in requests])
    command = [sys.executable, "-m", "tests.dry_runs", str(folder), text]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads((folder / str(number) / "report.json").read_text()) for number in range(len(requests))]


def main(folder: Path, requests: Sequence[tuple[str, int, list[int] | None]]) -> int:
    """Run them all."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    from simcoll.forked_rank import fork
    from simcoll.warm_torch import warm_up

    warm_up()
    running: set[int] = set()
    failed = 0
    for number, (script, size, ranks) in enumerate(requests):
        if len(running) == AT_A_TIME:
            failed += _one_ends(running)
        if (pid := fork()) == 0:
            _be_one(Path(script), size, ranks, folder / str(number))
        running.add(pid)
    while running:
        failed += _one_ends(running)
    return failed


def _one_ends(running: set[int]) -> bool:
    pid, status = os.wait()
    running.remove(pid)
    return status != 0


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
    sys.exit(main(Path(sys.argv[1]), json.loads(sys.argv[2])) != 0)
