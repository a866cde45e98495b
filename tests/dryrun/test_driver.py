"""``simcoll preflight``: bugs of one rank are found, correct scripts are silent, records are those of real runs."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from simcoll.blackbox.gather import gather
from simcoll.core.trace import Trace
from tests.support.documents import check_report
from tests.support.preflights import DryRuns
from tests.support.recorded_calls import calls

pytest.importorskip("torch")

pytestmark = [pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 180
FINDINGS = 3

HEAD = """\
import sys
import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group(sys.argv[1] if sys.argv[1:] else "nccl")
rank, size = dist.get_rank(), dist.get_world_size()
tensor = torch.ones(8)
dist.all_reduce(tensor)
"""

DRAWS = {"torch": "torch.rand(())", "python": "random.random()", "numpy": "np.random.rand()"}

BUGS = {
    "other operator": ("dist.all_reduce(tensor, op=dist.ReduceOp.MAX if rank == 5 else dist.ReduceOp.SUM)", "SC104"),
    "other size": ("dist.all_reduce(tensor[:4] if rank == 5 else tensor)", "SC102"),
    "one call less": ("if rank != 5:\n    dist.all_reduce(tensor)\ndist.barrier()\ndist.barrier()", "SC202"),
    "no last call": ("if rank != 5:\n    dist.barrier()", "SC702"),
    "one last call": ("if rank == 5:\n    dist.barrier()", "SC202"),
    "own failure": ("if rank == 5:\n    raise ValueError('planted')\ndist.barrier()", "SC701"),
}

CORRECT = {
    "an operator that torch's pipelines register too": 'torch.library.define("pippy::_pipe_split", "() -> ()")',
    "random numbers of one state": """
state = torch.get_rng_state()
dist.broadcast(state, 0)
torch.set_rng_state(state)
for _ in range(8):
    if torch.rand(()) > 0.5:
        dist.barrier()
""",
    "random numbers of GPUs in one state": """
if torch.cuda.is_available():
    state = torch.cuda.get_rng_state().cuda()
    dist.broadcast(state, 0)
    torch.cuda.set_rng_state(state.cpu())
    for _ in range(8):
        if torch.rand((), device="cuda") > 0.5:
            dist.barrier()
""",
    "random numbers of one seed": """
seed = torch.randint(1 << 30, (1,))
dist.broadcast(seed, 0)
torch.manual_seed(seed.item())
for _ in range(8):
    if torch.rand(()) > 0.5:
        dist.barrier()
""",
    "objects of any size": """
everyone = [None] * size
dist.all_gather_object(everyone, "x" * 50 * rank)
assert everyone == ["x" * 50 * one for one in range(size)]
mine = [rank, None]
dist.broadcast_object_list(mine, src=0)
assert mine == [0, None]
if rank == 0:
    dist.send_object_list([{"a": 1}, "b"], 1)
elif rank == 1:
    dist.recv_object_list([None, None], 0)
dist.barrier()
""",
    "experts whose counts are exchanged": """
counts = torch.tensor([(rank * 7 + peer * 3) % 5 + 1 for peer in range(size)])
others = torch.empty_like(counts)
dist.all_to_all_single(others, counts)
splits = others.tolist()
received = torch.empty(sum(splits), 2)
dist.all_to_all_single(received, torch.randn(int(counts.sum()), 2), splits, counts.tolist())
dist.barrier()
""",
    "data parallel": """
from torch.nn.parallel import DistributedDataParallel
model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)))
optimizer = torch.optim.Adam(model.parameters())
for step in range(3):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
""",
    "messages": """
if rank > 0:
    dist.recv(tensor, rank - 1)
if rank < size - 1:
    dist.send(tensor, rank + 1)
pairs = [dist.new_group([place, (place + 1) % size]) for place in range(size)]
for place in sorted((rank, (rank - 1) % size)):
    dist.all_reduce(tensor, group=pairs[place])
dist.destroy_process_group()
""",
}


def command(folder: Path, *arguments: object) -> tuple[int, dict[str, Any]]:
    """The command itself, in an interpreter of its own; its exit code and document."""
    words = [sys.executable, "-m", "simcoll", "preflight", "--json", "--out", folder / "out", *arguments]
    done = subprocess.run(list(map(str, words)), cwd=ROOT, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


class Preflight:
    """The command as a fork of an interpreter that has torch already: its exit code and its report, which is valid."""

    def __init__(self, runs: DryRuns) -> None:
        self._runs = runs

    def __call__(self, *arguments: object) -> tuple[int, dict[str, Any]]:
        report = self._runs.report(*arguments)
        exit_code = report.pop("exit_code")
        check_report(report)
        return exit_code, report

    def traces(self, *arguments: object) -> tuple[Trace, ...]:
        return self._runs.traces(*arguments)


@pytest.fixture(scope="module")
def preflight(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Preflight]:
    with DryRuns(tmp_path_factory.mktemp("dry")) as runs:
        yield Preflight(runs)


def script(folder: Path, body: str, name: str = "train.py") -> Path:
    path = folder / name
    path.write_text(HEAD + body + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("size", [8, pytest.param(64, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("bug", BUGS)
def test_a_bug_of_one_rank_is_found(bug: str, size: int, tmp_path: Path, preflight: Preflight) -> None:
    body, code = BUGS[bug]
    exit_code, report = preflight("--world-size", size, script(tmp_path, body))
    assert exit_code == FINDINGS
    found = report["findings"][0]
    assert (found["code"], found["culprits"]) == (code, [5])
    line = HEAD.count("\n") + 1
    lines = {source["line"] for side in found["sides"] for source in side["source"]}
    assert lines & {line, line + 1}


@pytest.mark.parametrize("draw", DRAWS)
def test_ranks_draw_their_own_random_numbers(draw: str, tmp_path: Path, preflight: Preflight) -> None:
    body = f"""
import random
import numpy as np
for _ in range(16):
    if {DRAWS[draw]} > 0.5:
        continue
    dist.barrier()
"""
    exit_code, report = preflight("--world-size", 4, script(tmp_path, body))
    assert exit_code == FINDINGS
    assert report["findings"][0]["code"] in ("SC202", "SC702")


def test_the_ranks_that_were_run_have_the_majority_among_themselves(tmp_path: Path, preflight: Preflight) -> None:
    asked = ("--world-size", 64, "--ranks", "1,5-7", script(tmp_path, BUGS["one last call"][0]))
    exit_code, report = preflight(*asked)
    [found] = report["findings"]
    assert (exit_code, found["code"], found["culprits"]) == (FINDINGS, "SC202", [5])
    assert "ranks 1 and 6-7, the majority, ended" in found["message"]


def test_a_call_on_which_ranks_disagree_is_not_finished(tmp_path: Path, preflight: Preflight) -> None:
    body = "dist.barrier()\ndist.all_reduce(tensor[:4] if rank == 1 else tensor)\ndist.barrier()"
    exit_code, report = preflight("--world-size", 2, script(tmp_path, body))
    [group] = report["summary"]["groups"]
    [finding] = report["findings"]
    assert (exit_code, finding["code"], group["finished"]["op"]) == (FINDINGS, "SC102", "barrier")
    assert group["finished"]["sequence"] == finding["sequence"] - 1


@pytest.mark.parametrize("program", CORRECT)
def test_a_correct_program_is_silent(program: str, tmp_path: Path, preflight: Preflight) -> None:
    exit_code, report = preflight("--world-size", 6, script(tmp_path, CORRECT[program]))
    assert (exit_code, report["findings"]) == (0, [])


@pytest.mark.parametrize("backend", ["mpi", "MPI", "cpu:mpi,cuda:nccl"])
def test_mpi_which_gives_ranks_their_numbers_itself_is_pretended_too(
    backend: str, tmp_path: Path, preflight: Preflight
) -> None:
    body = "assert 'mpi' in dist.get_backend()\nassert size == 3\ngroup = dist.new_group([0, 1])\n"
    body += "if rank < 2:\n    dist.all_reduce(tensor, group=group)"
    exit_code, report = preflight("--world-size", 3, script(tmp_path, body), backend)
    assert (exit_code, report["findings"], report["agreed"]) == (0, [], 2)


@pytest.mark.parametrize("ranks", ["0,3,5", "1-2"])
def test_ranks_that_did_not_run_are_not_judged(ranks: str, tmp_path: Path, preflight: Preflight) -> None:
    exit_code, report = preflight("--world-size", 6, "--ranks", ranks, script(tmp_path, CORRECT["messages"]))
    assert (exit_code, report["findings"]) == (0, [])


def test_of_many_ranks_some_are_run_and_more_where_they_differ(tmp_path: Path, preflight: Preflight) -> None:
    body = "if rank < 300:\n    dist.all_reduce(tensor)\nelse:\n    dist.reduce(tensor, 0)"
    exit_code, report = preflight("--world-size", 1000, script(tmp_path, body))
    assert exit_code == FINDINGS
    run = {rank["rank"] for rank in report["ranks"]}
    assert {0, 1, 299, 300, 998, 999} <= run
    assert len(run) <= 64


def test_of_many_ranks_that_are_alike_few_are_run(tmp_path: Path, preflight: Preflight) -> None:
    body = "import os\ntorch.cuda.set_device(int(os.environ['LOCAL_RANK']))\ndist.all_reduce(tensor.cuda())"
    exit_code, report = preflight("--world-size", 1000, script(tmp_path, body))
    assert (exit_code, report["findings"]) == (0, [])
    assert sorted(rank["rank"] for rank in report["ranks"]) == [0, 1, 2, 3, 499, 500, 998, 999]


def test_a_program_sees_every_gpu_that_is_pretended(tmp_path: Path, preflight: Preflight) -> None:
    body = """import os, subprocess
seen = os.getenv("CUDA_VISIBLE_DEVICES")
gpus = list(range(torch.cuda.device_count())) if seen is None else seen.split(",")
torch.cuda.set_device(int(gpus[int(os.environ["LOCAL_RANK"])]))
dist.all_reduce(tensor.cuda())
assert subprocess.check_output(["printenv", "CUDA_VISIBLE_DEVICES"]) == b"\\n"
"""
    exit_code, report = preflight("--world-size", 2, script(tmp_path, body))
    assert (exit_code, report["findings"]) == (0, []), report


def test_steps_end_a_program_well(tmp_path: Path, preflight: Preflight) -> None:
    body = CORRECT["data parallel"].replace("range(3)", "range(10 ** 9)")
    exit_code, report = preflight("--world-size", 4, "--steps", 2, script(tmp_path, body))
    assert (exit_code, report["findings"]) == (0, [])


def test_a_rank_that_does_not_end_is_ended(tmp_path: Path, preflight: Preflight) -> None:
    body = "import time\ntime.sleep(1000 if rank == 1 else 0)"
    _, report = preflight("--world-size", 3, "--timeout", 3, script(tmp_path, body))
    assert any("rank 1 ran for 3 s" in note for note in report["notes"])
    line = HEAD.count("\n") + 2
    assert any(f"train.py:{line} in <module>: rank 1 was here when" in note for note in report["notes"])


def test_flow_that_rests_on_received_values_is_noted(tmp_path: Path, preflight: Preflight) -> None:
    body = "if (tensor > 3).any():\n    dist.barrier()"
    _, report = preflight("--world-size", 4, script(tmp_path, body))
    assert any(f"train.py:{HEAD.count(chr(10)) + 1}: ranks 0-3 read" in note for note in report["notes"])


def test_ranks_that_lack_an_object_of_another_one_and_fail_are_no_finding(tmp_path: Path, preflight: Preflight) -> None:
    body = """
import os
path = [os.path.join("checkpoints", "last") if rank == 3 else None]
dist.broadcast_object_list(path, src=3)
name = os.path.basename(path[0])
dist.barrier()
"""
    exit_code, report = preflight("--world-size", 4, "--ranks", "0-2", script(tmp_path, body))
    assert (exit_code, report["findings"]) == (0, [])
    assert any("ranks 0-2 failed on values from other ranks" in note for note in report["notes"])
    failing = body.replace("name =", "if rank == 2:\n    raise ValueError('planted')\nname = rank or")
    exit_code, report = preflight("--world-size", 4, script(tmp_path, failing, "failing.py"))
    assert exit_code == FINDINGS
    assert (report["findings"][0]["code"], report["findings"][0]["culprits"]) == ("SC701", [2])


def test_a_check_that_fails_before_anything_was_received_is_a_failure(tmp_path: Path, preflight: Preflight) -> None:
    body = """
values = torch.ones(4) * (8 if rank == 2 else 1)
for _ in range(2):
    assert values.max() < 8
    dist.all_reduce(values)
    values /= size
"""
    path = script(tmp_path, "")
    path.write_text(HEAD.replace("dist.all_reduce(tensor)\n", "") + body, encoding="utf-8")
    exit_code, report = preflight("--world-size", 4, path)
    assert exit_code == FINDINGS
    assert (report["findings"][0]["code"], report["findings"][0]["culprits"]) == ("SC701", [2])


def test_sizes_that_were_received_are_compared(tmp_path: Path, preflight: Preflight) -> None:
    body = """
sizes = [torch.zeros(1, dtype=torch.long) for _ in range(size)]
dist.all_gather(sizes, torch.tensor([16 + rank]))
longest = max(int(one) for one in sizes)
mine = torch.zeros(longest + (rank == 5))
dist.all_gather([torch.empty_like(mine) for _ in range(size)], mine)
"""
    exit_code, report = preflight("--world-size", 8, script(tmp_path, body))
    assert exit_code == FINDINGS
    assert (report["findings"][0]["code"], report["findings"][0]["culprits"]) == ("SC102", [5])
    exit_code, report = preflight("--world-size", 4, script(tmp_path, body))
    assert (exit_code, report["findings"]) == (0, [])
    assert not any("not compared" in note for note in report["notes"])


def test_lines_of_an_installed_program_are_named_and_not_the_command(tmp_path: Path) -> None:
    """The command from which ranks are forked is a file outside of all packages, as the user's own code is."""
    package = tmp_path / "site-packages" / "framework"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "train.py").write_text(HEAD + BUGS["other operator"][0] + "\n", encoding="utf-8")
    command = Path(sys.executable).with_name("simcoll")
    ended = subprocess.run(
        [command, "preflight", "--json", "--out", tmp_path / "out", "--world-size", "8", "-m", "framework.train"],
        env={**os.environ, "PYTHONPATH": str(package.parent)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    [finding] = json.loads(ended.stdout)["findings"]
    assert finding["code"] == "SC104"
    assert str(package / "train.py") in json.dumps(finding)
    assert str(command) not in ended.stdout


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    held = os.open(tmp_path / "out", os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    exit_code, document = command(tmp_path, "--world-size", 2, script(tmp_path, ""))
    os.close(held)
    assert (exit_code, "another dry run" in document["error"]) == (2, True)


def test_values_that_are_pretended_are_not_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job's environment may ask for checks of values; those that a dry run gives a rank are its own."""
    monkeypatch.setenv("SIMCOLL_VALUES", "all")
    body = "mine = torch.ones(8) * (rank + 1)\ndist.all_reduce(mine)\ndist.broadcast(mine * rank, 0)"
    exit_code, document = command(tmp_path, "--world-size", 3, script(tmp_path, body))
    assert (exit_code, document["findings"]) == (0, [])


def test_no_world_size_is_refused(tmp_path: Path) -> None:
    exit_code, document = command(tmp_path, script(tmp_path, ""))
    assert exit_code == 2
    assert "--world-size" in document["error"]


@pytest.mark.gloo
@pytest.mark.parametrize("program", ["data parallel", "messages"])
def test_a_dry_run_records_what_a_real_run_does(program: str, tmp_path: Path, preflight: Preflight) -> None:
    path = script(tmp_path, CORRECT[program])
    arguments = ["gloo"]
    dry = preflight.traces("--world-size", 2, path, *arguments)
    real = [sys.executable, "-m", "simcoll", "run", "--mode", "record", "--out", tmp_path / "real"]
    command = [*real, "--standalone", "--nproc-per-node", 2, path, *arguments]
    subprocess.run(list(map(str, command)), cwd=ROOT, capture_output=True, timeout=LIMIT, check=True)
    assert calls(dry) == calls(gather([tmp_path / "real"]).traces)
