"""Jobs that hang or fail on the double of NCCL under ``simcoll run``: the report names the cause."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.cuda_double.build import environment
from tests.cuda_double.ranks import interpreter

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
ROOT = Path(__file__).parents[2]

HEAD = """
import os, signal, time
from datetime import timedelta
rank = int(os.environ["RANK"])
if rank != 1:
    os.environ.pop("SIMCOLL_DOUBLE_FAULT", None)
import torch
import torch.distributed as dist
torch.cuda.set_device(rank)
dist.init_process_group("nccl", timeout=timedelta(seconds=float(os.environ.get("SECONDS_TO_WAIT", "600"))))
x = torch.ones(4, device="cuda")

def evaluate():
    while True:
        time.sleep(0.5)

for _ in range(5):
    dist.all_reduce(x)
torch.cuda.synchronize()
"""
MISSING = """
if rank == 2:
    evaluate()
for _ in range(3):
    dist.all_reduce(x)
torch.cuda.synchronize()
"""
AHEAD = """
if rank == 2:
    evaluate()
while True:
    dist.all_reduce(x)
    time.sleep(0.5)
"""
KILLED = """
if rank == 2:
    dist.all_reduce(x)
    os.kill(os.getpid(), signal.SIGKILL)
for _ in range(3):
    dist.all_reduce(x)
torch.cuda.synchronize()
"""
OPPOSITE = """
groups = [dist.new_group([0, 1, 2]) for _ in range(2)]
for group in groups[:: -1 if rank == 1 else 1]:
    dist.all_reduce(x, group=group)
torch.cuda.synchronize()
"""
UNMATCHED = """
if rank == 0:
    dist.send(x, 1)
x.sum().item()
dist.barrier()
"""
UNMATCHED_AHEAD = """
if rank == 0:
    dist.recv(x, 1)
dist.barrier()
torch.cuda.synchronize()
"""
FAULT = """
for _ in range(6):
    dist.all_reduce(x)
torch.cuda.synchronize()
evaluate()
"""
CLEAN = """
dist.destroy_process_group()
"""


def package(folder: Path) -> Path:
    """simcoll as another interpreter finds it, with the entry point by which torch activates it.

    Copied: of files that are links nobody could tell which package they are of.
    """
    shutil.copytree(ROOT / "simcoll", folder / "simcoll")
    for part in ("backends", "reports", "verifier"):
        shutil.copytree(ROOT / part, folder / "simcoll" / part)
    about = folder / "simcoll-0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: simcoll\nVersion: 0\n")
    (about / "entry_points.txt").write_text("[torch.backends]\nsimcoll = simcoll.autoload:autoload\n")
    return folder


def report_on(program: str, folder: Path, *options: str, **variables: str) -> dict[str, object]:
    """The report on three ranks; those that hang are given up after six seconds."""
    python = interpreter()
    double = environment(python)
    (folder / "program.py").write_text(HEAD + program)
    paths = [str(package(folder / "package")), double.get("PYTHONPATH", "")]
    base = {key: value for key, value in os.environ.items() if not key.startswith(("TORCH_", "NCCL_", "SIMCOLL_"))}
    variables = {
        **base,
        **double,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "OMP_NUM_THREADS": "1",
        **variables,
    }
    command = [python, "-m", "simcoll", "run", "--out", str(folder / "out"), *options, "--nproc-per-node", "3"]
    ended = subprocess.run(
        [*command, str(folder / "program.py")], env=variables, cwd=folder, capture_output=True, text=True, timeout=200
    )
    assert (folder / "out" / "report.json").exists(), ended.stdout + ended.stderr
    found: dict[str, object] = json.loads((folder / "out" / "report.json").read_text())
    return found


def findings(report: dict[str, object]) -> list[tuple[object, ...]]:
    listed = report["findings"]
    assert isinstance(listed, list)
    return [(one["code"], one["severity"], one["culprits"], one["sequence"]) for one in listed]


@pytest.mark.parametrize(
    ("program", "code", "culprits", "sequence"),
    [
        pytest.param(MISSING, "SC201", [2], 6, id="missing"),
        pytest.param(AHEAD, "SC201", [2], 6, id="hosts that go on"),
        pytest.param(OPPOSITE, "SC204", [1], None, id="opposite orders"),
        pytest.param(UNMATCHED, "SC304", [], None, id="a send without a receive"),
        pytest.param(UNMATCHED_AHEAD, "SC304", [], None, id="a receive without a send, hosts that go on"),
        pytest.param(KILLED, "SC701", [2], None, id="killed in a kernel"),
    ],
)
def test_the_cause_is_named(tmp_path: Path, program: str, code: str, culprits: list[int], sequence: int | None) -> None:
    report = report_on(program, tmp_path, "--mode", "record", "--stall", "6")
    assert findings(report) == [(code, "error", culprits, sequence)]


def test_an_illegal_access_is_its_ranks(tmp_path: Path) -> None:
    report = report_on(FAULT, tmp_path, "--mode", "record", "--stall", "20", SIMCOLL_DOUBLE_FAULT="7")
    assert findings(report) == [("SC701", "error", [1], None)]
    assert "compute-sanitizer" in str(report["findings"])


def test_what_torchs_watchdog_ends_is_told_by_black_boxes_and_dumps(tmp_path: Path) -> None:
    waits = {"SECONDS_TO_WAIT": "5", "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "700"}
    report = report_on(MISSING, tmp_path, "--mode", "record", **waits)
    assert findings(report) == [("SC201", "error", [2], 6)]
    assert list((tmp_path / "out").glob("flight_recorder_rank_*"))


@pytest.mark.parametrize("mode", ["record", "check", "detail"])
def test_a_correct_program_is_silent(tmp_path: Path, mode: str) -> None:
    report = report_on(CLEAN, tmp_path, "--mode", mode)
    assert (report["verdict"], report["findings"]) == ("ok", [])
