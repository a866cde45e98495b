"""`benchmarks/gpu_check.sh` without a GPU: what is possible where, what becomes of ranks that fail, the tables."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import pytest

pytest.importorskip("torch")

from benchmarks.gpu import job as gpu_job
from benchmarks.gpu import main as gpu_check
from benchmarks.gpu.check import Check
from benchmarks.gpu.checks import every_check
from benchmarks.gpu.job import Outcome
from benchmarks.gpu.machine import Machine
from benchmarks.gpu.plan import batches, impossible
from benchmarks.gpu.rank import END, Job
from benchmarks.gpu.settings import Setting, cpu_settings, gpu_settings, unavailable
from benchmarks.gpu.tables import cell, document, markdown, reasons, text
from benchmarks.time_estimators import family_of, setting_for, table

ROOT = Path(__file__).resolve().parents[2]


def machine(gpus: int = 1, nccl: tuple[int, ...] = (2, 28, 9), preloaded: tuple[int, ...] | None = None) -> Machine:
    versions = {"torch": "2.11.0", "GPU": "1 x NVIDIA H200"}
    return Machine(gpus, "" if gpus else "torch sees no CUDA device", nccl, preloaded, 16, versions)


def possible(found: Machine) -> list[str]:
    return [setting.name for setting in gpu_settings(found) if unavailable(setting, found) is None]


def test_what_a_machine_can_do_follows_from_its_gpus_and_its_nccl() -> None:
    assert possible(machine(0)) == []
    one = ["nccl, 1 rank", "nccl, 2 ranks on 1 GPU as if on 2 hosts", "gloo, 2 ranks on 1 GPU, CUDA tensors"]
    assert possible(machine(1)) == one
    assert "nccl, 2 ranks on 1 GPU" in possible(machine(1, (2, 30, 3)))
    assert "nccl, 2 ranks on 1 GPU" in possible(machine(1, preloaded=(2, 30, 7)))
    assert "nccl, 4 GPUs" in possible(machine(8))


def test_each_impossible_cell_has_its_reason() -> None:
    here = machine(1)
    settings = {setting: unavailable(setting, here) for setting in gpu_settings(here)}
    said = impossible(settings, every_check(), here)
    assert all(outcome.outcome == "skipped" and outcome.reason for outcome in said)
    cells = {(outcome.setting, outcome.check, outcome.mode) for outcome in said}
    made = {
        (one.setting.name, check.name, one.mode)
        for one in batches(settings, every_check(), here)
        for check in one.checks
    }
    assert not cells & made
    everything = {
        (setting.name, check.name, mode) for setting in settings for check in every_check() for mode in check.modes
    }
    assert cells | made == everything


def test_checks_that_start_otherwise_or_stand_alone_share_no_processes() -> None:
    here = machine(2)
    for one in batches(dict.fromkeys(gpu_settings(here)), every_check(), here):
        assert len({(check.start, check.verified) for check in one.checks}) == 1
        assert len(one.checks) == 1 or not any(check.alone or check.job for check in one.checks)


def test_names_are_unique_and_each_section_is_in_the_documentation() -> None:
    names = [check.name for check in every_check()]
    assert len(names) == len(set(names))
    page = (ROOT / "docs" / "gpu.md").read_text(encoding="utf-8")
    for section in {check.section for check in every_check()} - {"times", "messages and groups of calls"}:
        assert f"--only {section.split()[0]}" in page or f'--only "{section.split()[0]}' in page


class Ended:
    """A process that has ended."""

    def __init__(self, returncode: int) -> None:
        self.returncode = returncode


def outcome_of(folder: Path, notes: list[list[dict[str, object]]], codes: list[int]) -> Outcome | None:
    """What becomes of the check "one" when the ranks wrote these notes and ended so."""
    job = Job(("one",), "gloo", ("cpu",) * len(notes), "record", "plain", str(folder))
    for rank, lines in enumerate(notes):
        job.notes(rank).write_text("".join(json.dumps(line) + "\n" for line in lines))
        (folder / f"rank{rank}.txt").write_text("Traceback\nRuntimeError: connection closed\n")
    setting = Setting("two", "gloo", len(notes), 0)
    return gpu_job._outcome(setting, "record", "one", job, cast(Any, [Ended(code) for code in codes]))


BEGUN: dict[str, object] = {"begin": "one"}
OK: dict[str, object] = {"end": "one", "outcome": "ok", "figures": {"time": "1 us"}}


def failed(reason: str) -> dict[str, object]:
    return {"end": "one", "outcome": "failed", "reason": reason}


@pytest.mark.parametrize(
    ("notes", "codes", "outcome", "reason"),
    [
        ([[BEGUN, OK], [BEGUN, OK]], [0, 0], "ok", ""),
        ([[BEGUN, OK], [BEGUN, failed("wrong")]], [0, 70], "failed", "rank 1: wrong"),
        ([[BEGUN, failed("wrong")], [BEGUN, failed("wrong")]], [70, 70], "failed", "rank 0, 1: wrong"),
        ([[BEGUN, OK], [BEGUN]], [0, -11], "failed", "rank 1: exited -11: RuntimeError: connection closed"),
        ([[BEGUN], [BEGUN]], [gpu_job.TIMED_OUT] * 2, "failed", "did not end and was killed"),
        ([[BEGUN, {"end": "one", "outcome": "skipped", "reason": "no"}], [BEGUN, OK]], [0, 0], "skipped", "no"),
    ],
)
def test_ranks_make_one_outcome(
    tmp_path: Path, notes: list[list[dict[str, object]]], codes: list[int], outcome: str, reason: str
) -> None:
    found = outcome_of(tmp_path, notes, codes)
    assert found is not None
    assert found.outcome == outcome
    assert reason in found.reason
    assert bool(found.figures) == (outcome == "ok")


def test_a_check_that_was_not_begun_is_left_for_another_attempt(tmp_path: Path) -> None:
    assert outcome_of(tmp_path, [[], []], [70, 70]) is None


CHECKS = [Check("sums", "calls", None), Check("hangs", "faults", None)]
OUTCOMES = [
    Outcome("here", "sums", "record", "ok", "", {"time": "3 us"}),
    Outcome("here", "sums", "detail", "failed", "rank 1: wrong | bad"),
    Outcome("here", "hangs", "record", "skipped", "needs 2 ranks"),
    Outcome("here", END, "record", "ok"),
]


def test_the_tables_say_all_there_is() -> None:
    assert cell(OUTCOMES[:2]) == "FAILED (detail), ok (record)"
    shown, page = (make(CHECKS, ["here"], OUTCOMES, machine()) for make in (text, markdown))
    for word in ("A: here", "FAILED (detail), ok (record)", "needs 2 ranks", "3 us", "torch 2.11.0", END):
        assert word in shown
        assert word in page
    told = json.loads(document(OUTCOMES, machine(), 1.0))
    assert told["outcomes"] == [asdict(outcome) for outcome in OUTCOMES]


def test_one_reason_is_said_once() -> None:
    many = [Outcome("here", f"check {number}", "record", "skipped", "no GPU") for number in range(6)]
    assert len(reasons(many, "skipped")) == 1
    assert "and 2 more" in reasons(many, "skipped")[0]


def test_estimators_skip_where_nccl_prices_nothing() -> None:
    assert setting_for(machine(0)) == (None, "torch sees no CUDA device")
    chosen, _ = setting_for(machine(4))
    assert chosen is not None
    assert (chosen.ranks, chosen.gpus) == (4, 4)
    chosen, _ = setting_for(machine(1))
    assert chosen is not None
    assert chosen.ranks == 2


@pytest.mark.parametrize(("name", "family"), [("1 x NVIDIA H200", "h200"), ("8 x NVIDIA H100 80GB HBM3", "h100")])
def test_a_gpu_tells_its_family(name: str, family: str) -> None:
    assert family_of(name) == family


def test_estimates_stand_side_by_side() -> None:
    row = {"op": "all_reduce", "calls": 1, "bytes": 1024, "simcoll_us": 20.0, "nccl_us": 10.0, "why": ""}
    alone = row | {"nccl_us": None, "why": "NCCL gives no estimate"}
    shown = table([row, alone])
    assert "2.00" in shown
    assert "NCCL gives no estimate" in shown


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.gloo
def test_checks_are_made_over_gloo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "found.json"
    arguments = ["--cpu", "--only", "all_reduce$|another reduce op", "--json", str(path)]
    assert gpu_check.main(arguments) == 0, capsys.readouterr().out
    made = json.loads(path.read_text())["outcomes"]
    assert {outcome["outcome"] for outcome in made} == {"ok"}
    assert {outcome["mode"] for outcome in made} == {"record", "check", "detail"}
    assert cpu_settings()[0].name in capsys.readouterr().out


@pytest.mark.slow
def test_the_script_says_why_it_skips() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    command = ["bash", str(ROOT / "benchmarks" / "gpu_check.sh")]
    ended = subprocess.run(
        command, env={"PATH": "/usr/bin:/bin", "PYTHON": sys.executable}, capture_output=True, text=True, check=True
    )
    assert "gpu_check: skipped: torch" in ended.stdout
