"""One job on hosts that share no folder: network namespaces, each with a folder of its own, and one report."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.gloo]
pytest.importorskip("torch")

HEAD = """
import os, threading, time
from datetime import timedelta
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
for _ in range(3):
    dist.all_reduce(torch.ones(4))
"""

LATE = """
def evaluate():
    threading.Event().wait(600)
if rank == dist.get_world_size() - 1:
    evaluate()
dist.barrier()
"""


@dataclass
class Job:
    """The commands of one job, a host each; the folder of host K is ``folder/outK``."""

    folder: Path
    commands: list[subprocess.Popen[str]]

    def ends(self) -> list[tuple[int, str]]:
        said = [command.communicate(timeout=150)[0] for command in self.commands]
        return [(command.returncode, text) for command, text in zip(self.commands, said, strict=True)]

    def report(self, host: int = 0) -> dict[str, Any]:
        document: dict[str, Any] = json.loads((self.folder / f"out{host}" / "report.json").read_text())
        return document

    def await_files(self, *names: str) -> None:
        """Wait for files that ranks make."""
        deadline = time.monotonic() + 90
        while not all((self.folder / name).exists() for name in names):
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def go(self, name: str) -> None:
        """Make a file that ranks wait for."""
        (self.folder / name).touch()


@contextlib.contextmanager
def started(
    hosts: list[str], folder: Path, body: str, *options: str, ranks: int = 1, outs: dict[int, Path] | None = None
) -> Iterator[Job]:
    script = folder / "train.py"
    script.write_text(HEAD + textwrap.dedent(body))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SIMCOLL_")}
    environment |= {"GLOO_SOCKET_IFNAME": "scwire", "OMP_NUM_THREADS": "1", "HERE": str(folder)}
    commands = []
    try:
        for node, host in enumerate(hosts):
            out = (outs or {}).get(node, folder / f"out{node}")
            command = ["ip", "netns", "exec", host, sys.executable, "-m", "simcoll", "run", "--out", str(out)]
            command += [f"--nnodes={len(hosts)}", f"--nproc-per-node={ranks}", f"--node-rank={node}"]
            command += ["--master-addr=10.99.0.1", "--master-port=29555", *options, str(script)]
            command[0] = str(shutil.which("ip"))
            pipe = subprocess.PIPE
            commands.append(
                subprocess.Popen(command, env=environment, stdout=pipe, stderr=subprocess.STDOUT, text=True)
            )
        yield Job(folder, commands)
    finally:
        for process in commands:
            process.kill()
            process.communicate()


def test_a_clean_job_makes_one_report(two_hosts: list[str], tmp_path: Path) -> None:
    with started(two_hosts, tmp_path, "dist.destroy_process_group()", ranks=2) as job:
        first, second = job.ends()
    assert (first[0], second[0]) == (0, 0), (first, second)
    assert "3 collectives on 4 ranks agree" in first[1]
    assert "the report on all ranks is that of node 0, in" in second[1]
    assert [rank["rank"] for rank in job.report()["ranks"]] == [0, 1, 2, 3]
    assert not (tmp_path / "out1" / "report.json").exists()
    names = {path.name for path in (tmp_path / "out0").iterdir()}
    assert {f"rank{rank:05d}.simcoll" for rank in range(4)} <= names
    assert not [path for out in ("out0", "out1") for path in (tmp_path / out).glob(".simcoll-nodes*")]
