"""What ``simcoll verify`` says of the records of jobs of `gpu_check` in which nothing was wrong: no false alarm."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from benchmarks.gpu.job import Outcome
from benchmarks.gpu.machine import with_paths
from benchmarks.gpu.settings import Setting

ROW = "right calls: simcoll verify is silent"
LIMIT_SECONDS = 60.0


def false_alarms(setting: Setting, mode: str, folder: Path) -> list[Outcome]:
    """The verdict on the black boxes of a job; none where another attempt was needed, whose records break off."""
    attempts = sorted(folder.glob("attempt*/boxes"))
    if mode == "off" or len(attempts) != 1:
        return []
    command = [sys.executable, "-m", "simcoll", "verify", str(attempts[0]), "--json"]
    try:
        ended = subprocess.run(
            command,
            env=with_paths(os.environ),
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
            check=False,
        )
        findings = json.loads(ended.stdout)["findings"]
    except subprocess.TimeoutExpired as error:
        return [Outcome(setting.name, ROW, mode, "failed", str(error))]
    except (ValueError, KeyError):
        last = ended.stderr.strip().splitlines()[-1:]
        return [Outcome(setting.name, ROW, mode, "failed", f"simcoll verify gives no report: {last}")]
    said = [f"{finding['code']}: {finding['message']:.160}" for finding in findings]
    return [Outcome(setting.name, ROW, mode, "failed" if said else "ok", "; ".join(said))]
