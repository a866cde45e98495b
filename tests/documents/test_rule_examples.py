"""The example of each rule gives that rule's finding, and no other, on ranks that have what the fragment only names."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from simcoll.testing import try_ranks
from simcoll.verifier.findings.rules import RULES

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

IMPORTS = """
import queue
import time
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
"""


@dataclass(frozen=True, slots=True)
class Stage:
    """On how many ranks a fragment is played, what each has before it, and on which backend."""

    ranks: int = 4
    before: str = "x = torch.ones(10)"
    backend: str = "threaded"
    values: str = "off"


STAGES = {
    "SC106": Stage(2, "x, out = torch.ones(4), torch.empty(4)"),
    "SC110": Stage(2, "a, b = torch.ones(4), torch.ones(6)"),
    "SC201": Stage(3, "loss, batches = torch.ones(1), queue.Queue()"),
    "SC202": Stage(3, "steps = torch.ones(6, 2)\nsteps[3, 0] = torch.inf if rank == 2 else 1.0"),
    "SC203": Stage(3, "loss, samples = torch.ones(()), torch.ones(())"),
    "SC204": Stage(2, "x = torch.ones(10)\na, b = dist.new_group(), dist.new_group()"),
    "SC301": Stage(2),
    "SC302": Stage(2),
    "SC303": Stage(2),
    # Rank 1 never calls torch.distributed: as a thread it then has no group of which anything is known.
    # Its peer waits until both are connected, for which Gloo needs both.
    "SC304": Stage(2, "x = torch.ones(10)\ndist.barrier()", backend="gloo"),
    "SC305": Stage(3, "x, y = torch.ones(4), torch.ones(4)\ntime.sleep(0.5 * (rank == 1))"),
    "SC601": Stage(4, "x, world_size = torch.ones(4), 4"),
    "SC702": Stage(3, "batches = torch.ones(12, 2)"),
    # A straggler is named from five seconds and thirty collectives on.
    "SC801": Stage(4, "batches = torch.ones(60, 2)"),
    "SC906": Stage(
        4,
        "from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module\n"
        'mesh = dist.init_device_mesh("cpu", (4,))',
        values="all",
    ),
    **{code: Stage(values="all") for code in ("SC901", "SC902", "SC903", "SC904", "SC905")},
}
"""What differs from the default."""

IN_A_DRY_RUN = {"SC107": "a tensor on a GPU needs one, and a dry run pretends it"}


def test_every_rule_is_played() -> None:
    assert {*STAGES, *IN_A_DRY_RUN} <= set(RULES)


@pytest.mark.gloo
@pytest.mark.filterwarnings("ignore:.*all_reduce_coalesced. will be deprecated:FutureWarning")
@pytest.mark.parametrize("code", sorted(RULES.keys() - IN_A_DRY_RUN))
def test_an_example_gives_its_finding(code: str, tmp_path: Path) -> None:
    stage, path, kept = STAGES.get(code, Stage()), tmp_path / f"{code}.py", []
    path.write_text(f"{IMPORTS}\n{stage.before}\n{RULES[code].example}\n", encoding="utf-8")
    program = compile(path.read_text(encoding="utf-8"), str(path), "exec")

    def script(rank: int) -> None:
        names: dict[str, Any] = {"__name__": code, "rank": rank}
        kept.append(names)  # a script's names live until its rank has ended
        exec(program, names)

    report = try_ranks(stage.ranks, script, backend=stage.backend, values=stage.values).report
    assert [finding.code for finding in report.findings] == [code], report.findings


@pytest.mark.parametrize("code", IN_A_DRY_RUN)
def test_an_example_gives_its_finding_in_a_dry_run(code: str, tmp_path: Path) -> None:
    program = f"""{IMPORTS}
dist.init_process_group("cpu:gloo,cuda:nccl")
rank = dist.get_rank()
{RULES[code].example}
"""
    (tmp_path / f"{code}.py").write_text(textwrap.dedent(program), encoding="utf-8")
    command = [sys.executable, "-m", "simcoll", "preflight", "--json", "--world-size", "3", f"{code}.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    assert done.stdout, done.stderr
    assert [finding["code"] for finding in json.loads(done.stdout)["findings"]] == [code], done.stdout
