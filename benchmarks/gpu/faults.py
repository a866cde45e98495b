"""Checks of `gpu_check`: jobs under ``simcoll run`` that hang, are killed or break on the device, and the report."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.gpu.check import Figures, launched
from benchmarks.gpu.job import ended
from benchmarks.gpu.machine import with_paths
from benchmarks.gpu.settings import Setting

SECTION = "faults under simcoll run"
PROGRAM = Path(__file__).with_name("fault_rank.py")
STALL_SECONDS = 8
LIMIT_SECONDS = 100.0


def report_on(fault: str, setting: Setting, mode: str, folder: Path) -> dict[str, Any]:
    """Start the script with the fault; the report on it. Raises AssertionError where there is none."""
    options = ["--mode", mode, "--out", str(folder / "out"), "--stall", str(STALL_SECONDS), "--json"]
    torchrun = ["--standalone", "--nproc-per-node", str(setting.ranks)]
    program = [str(PROGRAM), fault, setting.backend, str(setting.gpus)]
    command = [sys.executable, "-m", "simcoll", "run", *options, *torchrun, *program]
    environment = with_paths(os.environ) | {"OMP_NUM_THREADS": "1"} | dict(setting.environment)
    with (folder / "output.txt").open("w") as output, (folder / "report.txt").open("w") as report:
        process = subprocess.Popen(
            command, env=environment, cwd=folder, stdout=report, stderr=output, start_new_session=True
        )
        ended([process], LIMIT_SECONDS)
    try:
        told: dict[str, Any] = json.loads((folder / "report.txt").read_text())
    except ValueError:
        last = (folder / "output.txt").read_text(errors="replace").strip().splitlines()[-1:]
        raise AssertionError(f"no report; simcoll run exited {process.returncode}: {last}") from None
    return told


def expect(report: dict[str, Any], code: str, ranks: list[int], *words: str) -> Figures:
    """Raise AssertionError unless a finding has the code, concerns or blames the ranks, and says one of the words."""
    findings = report["findings"]
    found = [finding for finding in findings if finding["code"] == code]
    told = [f"{finding['code']} {finding['message']:.120}" for finding in findings]
    if not found:
        raise AssertionError(f"expected {code}, the report has {told or 'no finding'}")
    if not any(set(ranks) <= {*finding["culprits"], *finding["ranks"]} for finding in found):
        raise AssertionError(f"expected {code} to name ranks {ranks}, the report has {told}")
    if words and not any(word in json.dumps(found) for word in words):
        raise AssertionError(f"expected {code} to say {' or '.join(words)}, the report has {told}")
    return {}


@launched(
    SECTION, "a rank that never comes is named", modes=("record", "check", "detail"), ranks=2, plain=False, seconds=110
)
def late(setting: Setting, mode: str, folder: Path) -> Figures:
    """The others wait on the device, or in detail for its word."""
    return expect(report_on("late", setting, mode, folder), "SC201", [setting.ranks - 1])


@launched(SECTION, "a rank killed inside a kernel is named", modes=("record",), plain=False, seconds=110)
def killed(setting: Setting, mode: str, folder: Path) -> Figures:
    """The first failure of the job is that signal, whatever the others then raise."""
    return expect(report_on("killed", setting, mode, folder), "SC701", [setting.ranks - 1], "SIGKILL")


@launched(
    SECTION, "an illegal memory access is named", modes=("record",), cuda=True, kernels=True, plain=False, seconds=110
)
def illegal(setting: Setting, mode: str, folder: Path) -> Figures:
    """A kernel reads what is not there; CUDA says so at the next call that looks."""
    words = ("illegal memory access",)
    return expect(report_on("illegal", setting, mode, folder), "SC701", [setting.ranks - 1], *words)


@launched(SECTION, "a device-side assert is named", modes=("record",), cuda=True, plain=False, seconds=110)
def asserted(setting: Setting, mode: str, folder: Path) -> Figures:
    """An index out of range, as models have it."""
    words = ("device-side assert",)
    return expect(report_on("out_of_range", setting, mode, folder), "SC701", [setting.ranks - 1], *words)
