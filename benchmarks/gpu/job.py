"""Starts the ranks of a job of `gpu_check`, watches them, and makes outcomes of what they wrote."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.gpu.check import Check
from benchmarks.gpu.machine import with_paths
from benchmarks.gpu.rank import END, Job
from benchmarks.gpu.settings import Setting

START_SECONDS = 60.0
"""How long ranks may take to import torch and to make their first check."""
GRACE_SECONDS = 6.0
"""How long the other ranks may go on when one has failed, to say what they see."""
LOOK_SECONDS = 0.1
MODES = ("SIMCOLL_MODE", "SIMCOLL_OUT", "TORCH_DISTRIBUTED_DEBUG")


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a check ended on a setting in a mode: ``ok``, ``failed`` or ``skipped``; the reason; what was measured."""

    setting: str
    check: str
    mode: str
    outcome: str
    reason: str = ""
    figures: dict[str, str] = field(default_factory=dict)


def run_job(setting: Setting, mode: str, checks: Sequence[Check], folder: Path) -> list[Outcome]:
    """Make checks in the processes of one job, and in those of another one where a check ended the first."""
    outcomes: list[Outcome] = []
    left = list(checks)
    while left:
        attempt = folder / f"attempt{len(outcomes)}"
        attempt.mkdir(parents=True)
        found = _attempt(setting, mode, left, attempt)
        outcomes += found
        done = {outcome.check for outcome in found}
        left = [check for check in left if check.name not in done]
    return outcomes


def _attempt(setting: Setting, mode: str, checks: Sequence[Check], folder: Path) -> list[Outcome]:
    devices = tuple(setting.device(rank) for rank in range(setting.ranks))
    names = tuple(check.name for check in checks)
    job = Job(names, setting.backend, devices, mode, checks[0].start, str(folder))
    path = folder / "job.json"
    path.write_text(json.dumps(asdict(job)))
    processes = start(setting, "benchmarks.gpu.rank", path, folder)
    _watch(processes, job, {check.name: check.seconds for check in checks})
    found = [outcome for check in checks if (outcome := _outcome(setting, mode, check.name, job, processes))]
    if found and found[-1].outcome != "failed" and len(found) == len(checks):
        found += _ending(setting, mode, checks[-1].name, job, processes)
    # Whatever happened, no check is tried twice in vain.
    return found or [Outcome(setting.name, names[0], mode, "failed", _died(job, processes))]


def start(setting: Setting, module: str, job: Path, folder: Path) -> list[subprocess.Popen[bytes]]:
    """Start a program on every rank of a setting, with the launcher's variables; their output goes to the folder."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = str(listener.getsockname()[1])
    common = {name: value for name, value in with_paths(os.environ).items() if name not in MODES} | {
        "WORLD_SIZE": str(setting.ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "OMP_NUM_THREADS": "1",
    }
    processes = []
    for rank in range(setting.ranks):
        local = str(rank % setting.gpus if setting.gpus else rank)
        environment = common | {"RANK": str(rank), "LOCAL_RANK": local} | dict(setting.environment)
        with (folder / f"rank{rank}.txt").open("wb") as output:
            command = [sys.executable, "-m", module, str(job)]
            process = subprocess.Popen(
                command, env=environment, cwd=folder, stdout=output, stderr=output, start_new_session=True
            )
            processes.append(process)
    return processes


def _watch(processes: Sequence[subprocess.Popen[bytes]], job: Job, seconds: dict[str, float]) -> None:
    """Wait until all have ended, one has failed and the others had their time, or none gets on."""
    noted, since, allowed = -1, time.monotonic(), START_SECONDS
    failed_at: float | None = None
    while any(process.poll() is None for process in processes):
        now = time.monotonic()
        lines = [line for rank in range(len(processes)) for line in notes(job, rank)]
        if len(lines) > noted:
            noted, since = len(lines), now
            begun = [str(line["begin"]) for line in lines if "begin" in line]
            allowed = max(
                (seconds.get(name, START_SECONDS) for name in begun[-len(processes) :]), default=START_SECONDS
            )
        if failed_at is None and any(process.poll() not in (None, 0) for process in processes):
            failed_at = now
        if now - since > allowed or (failed_at is not None and now - failed_at > GRACE_SECONDS):
            break
        time.sleep(LOOK_SECONDS)
    ended(processes, 0.0)


def ended(processes: Sequence[subprocess.Popen[bytes]], limit: float) -> None:
    """Wait for processes that lead sessions of their own, then kill what is left of these."""
    deadline = time.monotonic() + limit
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(deadline - time.monotonic(), 0.01))
    # All at once, so that none tells of the others' end as of a failure.
    left = [process for process in processes if process.poll() is None]
    for process in left:
        os.killpg(process.pid, signal.SIGKILL)
    for process in left:
        process.wait()
        process.returncode = TIMED_OUT


TIMED_OUT = 1000
"""Stands for the exit code of a process that was killed because it did not end."""


def notes(job: Job, rank: int) -> list[dict[str, object]]:
    """What a rank has written down, whole lines only."""
    try:
        lines = job.notes(rank).read_text().splitlines(keepends=True)
    except OSError:
        return []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def _outcome(
    setting: Setting, mode: str, name: str, job: Job, processes: Sequence[subprocess.Popen[bytes]]
) -> Outcome | None:
    """How a check ended on all ranks together; None where it was not made."""
    ranks = [notes(job, rank) for rank in range(len(processes))]
    ends = {rank: line for rank, lines in enumerate(ranks) for line in lines if line.get("end") == name}
    begun = [rank for rank, lines in enumerate(ranks) if any(line.get("begin") == name for line in lines)]
    failed = {rank: str(end["reason"]) for rank, end in ends.items() if end["outcome"] == "failed"}
    if failed:
        return Outcome(setting.name, name, mode, "failed", "; ".join(_by_reason(failed)))
    if len(ends) < len(processes):
        if not begun:
            return None
        missing = {rank: _ended_how(job, rank, processes[rank]) for rank in range(len(processes)) if rank not in ends}
        return Outcome(setting.name, name, mode, "failed", "; ".join(_by_reason(missing)))
    skipped = [str(end["reason"]) for end in ends.values() if end["outcome"] == "skipped"]
    if skipped:
        return Outcome(setting.name, name, mode, "skipped", skipped[0])
    figures = ends[0].get("figures")
    return Outcome(setting.name, name, mode, "ok", "", dict(figures) if isinstance(figures, dict) else {})


def _by_reason(said: dict[int, str]) -> list[str]:
    """Ranks that say the same, said once."""
    reasons: dict[str, list[int]] = {}
    for rank, reason in said.items():
        reasons.setdefault(reason, []).append(rank)
    return [f"rank {', '.join(map(str, ranks))}: {reason}" for reason, ranks in reasons.items()]


def _ending(
    setting: Setting, mode: str, last: str, job: Job, processes: Sequence[subprocess.Popen[bytes]]
) -> list[Outcome]:
    """Whether the job whose checks were made also ended well: groups destroyed, every exit code 0."""
    wrong = {
        rank: _ended_how(job, rank, process)
        for rank, process in enumerate(processes)
        if process.returncode != 0 or not any(line.get("end") == END for line in notes(job, rank))
    }
    said = "; ".join(_by_reason(wrong))
    name = f"{END} (after: {last})" if wrong else END
    return [Outcome(setting.name, name, mode, "failed" if wrong else "ok", said)]


def _ended_how(job: Job, rank: int, process: subprocess.Popen[bytes]) -> str:
    how = "did not end and was killed" if process.returncode == TIMED_OUT else f"exited {process.returncode}"
    return f"{how}: {_last_words(job, rank)}"


def _last_words(job: Job, rank: int) -> str:
    lines = (Path(job.folder) / f"rank{rank}.txt").read_text(errors="replace").strip().splitlines()
    said = [line.strip() for line in lines if "Error" in line] or lines
    return f"{said[-1]:.300}" if said else "no output"


def _died(job: Job, processes: Sequence[subprocess.Popen[bytes]]) -> str:
    """Why no check was made at all."""
    return "; ".join(_by_reason({rank: _ended_how(job, rank, process) for rank, process in enumerate(processes)}))
