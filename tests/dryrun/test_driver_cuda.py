"""Dry runs of training scripts that are written for GPUs, on a machine without one: silent, or the bug by its line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

pytestmark = [pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = sorted((ROOT / "tests/programs/cuda").glob("*.py"))
FINDINGS = 3
LIMIT = 180

BUGS = {"language_model": "SC104", "experts": "SC202", "images": "SC103", "stages": "SC701"}
"""The finding on the bug of rank 1 that a program has when it is told so."""


def preflight(
    folder: Path, program: Path, *arguments: str, options: tuple[str, ...] = ()
) -> tuple[int, dict[str, Any]]:
    command = [
        sys.executable,
        "-m",
        "simcoll",
        "preflight",
        "--json",
        "--world-size",
        "4",
        "--out",
        str(folder / "out"),
    ]
    done = subprocess.run(
        [*command, *options, str(program), *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_a_correct_program_is_silent_without_memory(program: Path, tmp_path: Path) -> None:
    exit_code, report = preflight(tmp_path, program, options=("--fake-tensors",))
    assert (exit_code, report["findings"]) == (0, [])
    assert any("4 GPUs a node, which were pretended" in note for note in report["notes"])
    assert not list(tmp_path.glob("*.pt")), "what a dry run saves stays in its folder"
    kinds = {path.suffix for path in (tmp_path / "out").iterdir()}
    assert kinds == {".simcoll", ".log", ".json", ".html"}, "nothing remains that ranks leave for each other"


def test_a_module_whose_graph_holds_a_parameter_is_moved_without_memory(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(
        "import torch, torch.distributed as dist\ndist.init_process_group('nccl')\n"
        "model = torch.nn.utils.weight_norm(torch.nn.Linear(8, 8)).half().cuda()\n"
        "assert (model.weight_v.dtype, model.weight_v.device.type) == (torch.float16, 'cuda')\n"
        "model(torch.ones(2, 8).half().cuda()).sum().backward()\ndist.all_reduce(model.weight_v.grad)\n",
        encoding="utf-8",
    )
    exit_code, report = preflight(tmp_path, program, options=("--fake-tensors", "--ranks", "0-1"))
    assert (exit_code, report["findings"]) == (0, [])


@pytest.mark.parametrize("name", BUGS)
def test_a_bug_of_one_rank_is_found(name: str, tmp_path: Path) -> None:
    program = ROOT / f"tests/programs/cuda/{name}.py"
    exit_code, report = preflight(tmp_path, program, "bug")
    assert exit_code == FINDINGS
    found = report["findings"][0]
    assert (found["code"], found["culprits"]) == (BUGS[name], [1])
    planted = [place for place, line in enumerate(program.read_text().splitlines(), 1) if '"bug" in sys.argv' in line]
    lines = {source["line"] for side in found["sides"] for source in side["source"]}
    assert any(0 <= line - planted[0] <= 4 or planted[0] - 1 == line for line in lines)


def test_what_was_received_is_taken_for_what_is_expected(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(
        "import torch, torch.distributed as dist\ndist.init_process_group('gloo')\nrank = dist.get_rank()\n"
        "x = torch.full((4,), float(rank))\ndist.all_reduce(x)\nassert torch.equal(x, torch.full((4,), 6.0))\n"
        "assert torch.allclose(x[1:], torch.tensor(6.0))\ntorch.testing.assert_close(x, torch.full((4,), 6.0))\n",
        encoding="utf-8",
    )
    exit_code, report = preflight(tmp_path, program)
    assert (exit_code, report["findings"]) == (0, [])
    assert sum("train.py:" in note for note in report["notes"]) == 3


def test_a_program_is_told_that_there_is_no_gpu(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text("import torch\nassert not torch.cuda.is_available()\ntorch.ones(3).cuda()\n", encoding="utf-8")
    exit_code, _ = preflight(tmp_path, program, options=("--device", "cpu"))
    assert exit_code == 1
    said = (tmp_path / "out/rank00000.log").read_text(encoding="utf-8")
    # A build without CUDA says so; one with it lacks a driver.
    assert "CUDA" in said or "NVIDIA driver" in said
