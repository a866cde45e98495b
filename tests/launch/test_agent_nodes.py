"""One job on two hosts: network namespaces with a wire between them, and a folder that both see."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.gloo]
pytest.importorskip("torch")

HEAD = """
import threading
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
for _ in range(3):
    dist.all_reduce(torch.ones(4))
"""


def run(hosts: list[str], folder: Path, body: str) -> tuple[list[tuple[int, str]], dict[str, Any]]:
    """Each host's exit code and what it said, and the one report."""
    script = folder / "train.py"
    script.write_text(HEAD + textwrap.dedent(body))
    options = ["--nnodes=2", "--nproc-per-node=2", "--master-addr=10.99.0.1", "--master-port=29555", "--stall=4"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SIMCOLL_")}
    jobs = [
        subprocess.Popen(
            [
                str(shutil.which("ip")),
                *("netns", "exec", host, sys.executable, "-m", "simcoll", "run", "--out", str(folder / "out")),
                *(*options, f"--node-rank={node}", str(script)),
            ],
            env={**environment, "GLOO_SOCKET_IFNAME": "scwire", "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for node, host in enumerate(hosts)
    ]
    try:
        said = [job.communicate(timeout=150)[0] for job in jobs]
    finally:
        for job in jobs:
            job.kill()
    ended = [(job.returncode, text) for job, text in zip(jobs, said, strict=True)]
    report = (
        json.loads((folder / "out" / "report.json").read_text()) if (folder / "out" / "report.json").exists() else {}
    )
    return ended, report


def test_a_clean_job_says_so_once(two_hosts: list[str], tmp_path: Path) -> None:
    (first, second), report = run(two_hosts, tmp_path, "dist.destroy_process_group()")
    assert (first[0], second[0]) == (0, 0), (first, second)
    assert "3 collectives on 4 ranks agree" in first[1]
    assert "the report on all ranks is that of node 0" in second[1]
    assert [rank["rank"] for rank in report["ranks"]] == [0, 1, 2, 3]


def test_a_rank_of_the_other_host_that_does_not_come_is_named_with_its_line(
    two_hosts: list[str], tmp_path: Path
) -> None:
    body = """
    def evaluate():
        threading.Event().wait(600)
    if rank == 3:
        evaluate()
    dist.barrier()
    """
    (first, second), report = run(two_hosts, tmp_path, body)
    assert (first[0], second[0]) == (3, 3), (first, second)
    [finding] = report["findings"]
    assert (finding["code"], finding["culprits"]) == ("SC201", [3])
    place = finding["sides"][-1]["source"][0]
    assert (place["function"], place["code"]) == ("evaluate", "threading.Event().wait(600)")
    assert {rank["state"] for rank in report["ranks"]} == {"stopped"}


def test_ranks_of_both_hosts_dump_into_one_folder(two_hosts: list[str], tmp_path: Path) -> None:
    body = f"""
    import os, signal
    import simcoll
    simcoll.dump()
    simcoll.dump({str(tmp_path / "copies")!r})
    os.kill(os.getpid(), signal.SIGUSR1)
    dist.barrier()
    dist.destroy_process_group()
    """
    (first, second), report = run(two_hosts, tmp_path, body)
    assert (first[0], second[0]) == (0, 0), (first, second)
    assert report["findings"] == []
    names = sorted(f"rank{rank:05d}.{kind}" for rank in range(4) for kind in ("simcoll", "stacks.txt"))
    assert sorted(path.name for path in (tmp_path / "copies").iterdir()) == names
    assert {path.name for path in (tmp_path / "out").iterdir()} >= set(names)
    for rank in range(4):
        text = (tmp_path / "out" / f"rank{rank:05d}.stacks.txt").read_text()
        assert text.count("(most recent call first)") >= 2, text
