"""Every command once as a user starts it: a new interpreter that imports what it needs, and ranks that do.

Elsewhere commands are forks of a process that has imported torch (``tests/support/warm.py``).
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytestmark = [pytest.mark.slow, pytest.mark.gloo, pytest.mark.cold]

ROOT = Path(__file__).resolve().parents[2]
BUG = ROOT / "examples" / "planted_bug.py"
PROGRAM = """\
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4), dist.ReduceOp.MAX if dist.get_rank() else dist.ReduceOp.SUM)
"""
"""For two ranks: each rank is an interpreter that imports torch."""

SCENARIO = """\
ranks = 2
[[calls]]
name = "sum"
op = "all_reduce"
[[faults]]
kind = "wrong-reduce-op"
ranks = 1
call = "sum"
reduce_op = "max"
"""
CLUSTER = ("--gpu", "h100", "--nodes", "1", "--gpus-per-node", "4")

COMMANDS: dict[str, tuple[int, str, tuple[object, ...]]] = {
    "run": (3, "SC104", ("run", "--standalone", "--nproc-per-node", 2, "program.py")),
    "preflight": (3, "SC104", ("preflight", "--world-size", 3, BUG)),
    "estimate a script": (3, "SC104", ("estimate", BUG, "--world-size", 3, *CLUSTER)),
    "estimate a collective": (0, "all_reduce", ("estimate", "all_reduce", "--bytes", "1GiB", *CLUSTER)),
    "simulate": (3, "SC204", ("simulate", "SC204")),
    "simulate on Gloo": (3, "SC104", ("simulate", "scenario.toml", "--backend", "gloo")),
    "topology": (0, "h100", ("topology", "list")),
    "rules": (0, "reduce-op-mismatch", ("rules", "SC104")),
    "demo": (0, "SC104", ("demo",)),
    "status": (2, "", ("status", "no-such-folder")),
    "top": (2, "", ("top", "--once")),
    "metrics": (2, "", ("metrics", "no-such-folder", "--listen", "127.0.0.1:0")),
}
"""The exit code, a word that is printed, and the command's words."""


def start(folder: Path, *words: object) -> subprocess.CompletedProcess[str]:
    command = [Path(sys.executable).with_name("simcoll"), *words]
    return subprocess.run(list(map(str, command)), cwd=folder, capture_output=True, text=True, timeout=200, check=False)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command(name: str, tmp_path: Path) -> None:
    code, word, words = COMMANDS[name]
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "scenario.toml").write_text(SCENARIO)
    ended = start(tmp_path, *words)
    assert (ended.returncode, word in ended.stdout) == (code, True), ended.stdout + ended.stderr


def test_what_a_job_under_another_launcher_left_is_verified(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "program.py"]
    settings = ("env", "SIMCOLL_MODE=detail", f"SIMCOLL_OUT={tmp_path / 'records'}")
    subprocess.run([*settings, *command], cwd=tmp_path, capture_output=True, timeout=200, check=False)
    ended = start(tmp_path, "verify", tmp_path / "records")
    assert (ended.returncode, "SC104" in ended.stdout) == (3, True), ended.stdout + ended.stderr


def test_a_cluster_is_measured(tmp_path: Path) -> None:
    ended = start(
        tmp_path,
        "calibrate",
        "--standalone",
        "--ops",
        "all_reduce",
        "--max-bytes",
        "8KiB",
        "--out",
        tmp_path / "here.json",
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert (tmp_path / "here.json").exists()
