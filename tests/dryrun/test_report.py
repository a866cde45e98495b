"""The report on a dry run: what it covers, and the same again from its folder."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from tests.support.preflights import DryRuns

pytestmark = [pytest.mark.slow]

FINDINGS = 3
HEAD = """\
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
tensor = torch.ones(8)
dist.all_reduce(tensor)
"""

FAILS_ON_A_GUESS = """
weights = torch.rand(1000) + rank
dist.broadcast(weights, 0)
assert weights[0].item() < 1, "rank 0 has no such weight"
dist.barrier()
dist.barrier()
"""

SIZES_THAT_DIFFER = """
own = torch.ones(3 + rank, 4)
sizes = [torch.zeros(1, dtype=torch.long) for _ in range(size)]
dist.all_gather(sizes, torch.tensor([len(own)]))
if all(one.item() == len(own) for one in sizes):
    dist.all_gather([torch.empty_like(own) for _ in range(size)], own)
else:
    longest = max(one.item() for one in sizes)
    padded = torch.zeros(longest, 4)
    padded[: len(own)] = own
    dist.all_gather([torch.empty_like(padded) for _ in range(size)], padded)
dist.barrier()
"""

SIZES_THAT_DIFFER_BUG = SIZES_THAT_DIFFER.replace(
    "padded = torch.zeros(longest", "padded = torch.zeros(longest + rank % 2"
)

HANGS = "if rank != 1:\n    dist.barrier()\ndist.all_reduce(tensor)\n"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DryRuns]:
    with DryRuns(tmp_path_factory.mktemp("dry")) as made:
        yield made


def asked(folder: Path, body: str, *options: object) -> tuple[object, ...]:
    script = folder / "train.py"
    script.write_text(HEAD + body, encoding="utf-8")
    return "--world-size", 4, *options, script


def verified(folder: Path) -> tuple[int, dict[str, Any]]:
    words = [sys.executable, "-m", "simcoll", "verify", "--json", str(folder)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    return done.returncode, json.loads(done.stdout)


def test_a_dry_run_that_failed_on_guesses_says_so_first(tmp_path: Path, runs: DryRuns) -> None:
    number, out = runs.run(*asked(tmp_path, FAILS_ON_A_GUESS))
    report = json.loads((out / "report.json").read_text())
    assert (number, report["findings"]) == (0, [])
    gaps = ["ranks 1-3 failed on guessed values"]
    assert report["coverage"] == {"complete": False, "run": 4, "followed": 1, "gaps": gaps}
    first = " ".join((out / "shown.txt").read_text().split())
    assert first.startswith(
        "simcoll: a dry run of 4 ranks, incomplete (ranks 1-3 failed on guessed values): they agree"
    )


@pytest.mark.parametrize(("body", "code"), [(FAILS_ON_A_GUESS, FINDINGS), (SIZES_THAT_DIFFER, 0), (HANGS, FINDINGS)])
def test_a_gate_asks_for_all_of_the_program(body: str, code: int, tmp_path: Path, runs: DryRuns) -> None:
    ended, out = runs.run(*asked(tmp_path, body, "--require", "complete"))
    assert ended == code
    incomplete = "the dry run is incomplete (--require complete)" in (out / "shown.txt").read_text()
    assert incomplete == (body == FAILS_ON_A_GUESS)


def test_a_branch_that_all_ranks_take_alike_on_a_guess_is_no_finding(tmp_path: Path, runs: DryRuns) -> None:
    report = runs.report(*asked(tmp_path, SIZES_THAT_DIFFER))
    assert (report["exit_code"], report["findings"], report["agreed"]) == (0, [], 4)


def test_a_bug_behind_such_a_branch_is_found(tmp_path: Path, runs: DryRuns) -> None:
    report = runs.report(*asked(tmp_path, SIZES_THAT_DIFFER_BUG))
    assert [(found["code"], found["sequence"]) for found in report["findings"]] == [("SC102", 3)]


@pytest.mark.parametrize("body", [FAILS_ON_A_GUESS, SIZES_THAT_DIFFER, HANGS])
def test_the_folder_is_judged_as_the_dry_run_judged(body: str, tmp_path: Path, runs: DryRuns) -> None:
    code, out = runs.run(*asked(tmp_path, body))
    assert verified(out) == (code, json.loads((out / "report.json").read_text()))
