"""``simcoll.step`` in real ranks: the record, the report's steps, and a process that records nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

import simcoll
from simcoll.backends.threaded.run import run_threaded
from simcoll.blackbox import BlackBoxWriter, read_black_box
from simcoll.cli import main
from simcoll.core.steps import StepMarks
from tests.support.seeds import nightly

PROGRAM = """
import torch, torch.distributed as dist, simcoll
dist.init_process_group("gloo")
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
MARK
for step in range(6):
    loss = model(torch.ones(4, 2)).sum()
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    if step == 4 and dist.get_rank() == 1:
        dist.broadcast(loss.detach(), 0)
    optimizer.step()
    END
"""
BY_HAND = PROGRAM.replace("MARK", "").replace("END", "simcoll.step()")
BY_OPTIMIZER = PROGRAM.replace("MARK", "simcoll.mark_steps(optimizer)").replace("END", "")
UNMARKED = PROGRAM.replace("MARK", "").replace("END", "")
"""Rank 1 makes a call of its own in step 5."""

CASES = (
    ("step", BY_HAND, True, "record"),
    ("optimizer", BY_OPTIMIZER, True, "detail"),
    ("unmarked", UNMARKED, False, "record"),
)
"""Each program is run in one mode on every change, and in the other one in ``make nightly``."""


@pytest.mark.gloo
@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "exact", "mode"),
    [
        pytest.param(text, exact, mode, id=f"{name}-{mode}", marks=nightly(mode != usual))
        for name, text, exact, usual in CASES
        for mode in ("record", "detail")
    ],
)
def test_a_report_names_the_step(tmp_path: Path, text: str, exact: bool, mode: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(text)
    out = tmp_path / "out"
    command = [sys.executable, "-m", "simcoll", "run", "--mode", mode, "--stall", "2", "--standalone"]
    ended = subprocess.run(
        [*command, "--nproc-per-node", "3", "--out", str(out), str(program)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert ended.returncode == 3, ended.stderr
    report = json.loads((out / "report.json").read_text(encoding="utf-8"))
    first = report["findings"][0]
    assert first["culprits"] == [1]
    # Without marks the call that rank 1 alone makes comes behind five rounds of the others' calls.
    number = 5 if exact else 6
    assert first["step"] == {"number": number, "exact": exact}
    assert f", {'' if exact else 'about '}step {number}" in " ".join(ended.stdout.split())
    steps = [(one["ended"], one["ranks"]) for one in report["summary"]["steps"]]
    assert steps == ([(5, [0, 2]), (4, [1])] if exact else [])
    assert ("ranks 0 and 2 ended 5 steps, the last ones in" in ended.stdout) == exact


def test_steps_of_threads_are_their_own() -> None:
    def body(rank: int) -> None:
        for _ in range(rank):
            simcoll.step()

    outcome = run_threaded(3, body)
    assert outcome.ok
    assert outcome.report.summary is not None
    assert [(one.number, one.ranks) for one in outcome.report.summary.steps] == [(2, (2,)), (1, (1,)), (0, (0,))]


def test_a_process_that_records_nothing_goes_on() -> None:
    simcoll.step()


def test_the_number_survives_where_times_are_thinned_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    box = BlackBoxWriter(tmp_path / "rank00000.simcoll", rank=0, world_size=1, mode="record", records=16)
    for _ in range(1_001):
        box.step()
    unfinished = StepMarks.of(read_black_box(box.path).events)
    assert unfinished is not None
    assert (unfinished.ended, int(unfinished.numbers[-1])) == (1_001, 1_000)
    box.close()
    finished = read_black_box(box.path)
    assert finished.closed_ns
    marks = StepMarks.of(finished.events)
    assert marks is not None
    assert marks.ended == 1_001
    assert main(["verify", "--json", str(tmp_path)]) == 0
    summary = json.loads(capsys.readouterr().out)["summary"]
    assert [(one["ended"], one["ranks"]) for one in summary["steps"]] == [(1_001, [0])]
