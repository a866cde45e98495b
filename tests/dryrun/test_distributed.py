"""A dry run in several processes, on two hosts without a shared folder: each takes ranks, one verifies."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.engines import free_port

dist = pytest.importorskip("torch.distributed")

pytestmark = [pytest.mark.slow, pytest.mark.gloo]

LIMIT = 240
FINDINGS, GIVEN_UP = 3, 1

PROGRAM = """\
import os, sys
import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank = dist.get_rank()
print("here:", os.environ["HERE"])
assert os.environ["RANK"] == os.environ.get("SLURM_PROCID", str(rank)) == str(rank)
assert "TORCHELASTIC_USE_AGENT_STORE" not in os.environ
dist.all_reduce(torch.ones(8))
"""

SKIPPED = "if rank != 5:\n    dist.all_reduce(torch.ones(8))\ndist.barrier()\ndist.barrier()\n"
DIFFERENT = "if rank < 300:\n    dist.all_reduce(torch.ones(8))\nelse:\n    dist.reduce(torch.ones(8), 0)\n"
ODD_SIZE = """\
import torch
import torch.distributed as dist
dist.init_process_group("nccl")
dist.all_reduce(torch.ones(5 if dist.get_rank() == 1 else 4))
"""
DEATH = """
if os.environ["HERE"].endswith(sys.argv[1]):
    keeper = open(f"/proc/{os.getppid()}/stat").read()
    os.kill(int(keeper.rpartition(")")[2].split()[1]), 9)
"""
"""Ends the process of the dry run that runs this rank, on one of the hosts."""

LAUNCHERS = {
    "torchrun": ["-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1", "--master-addr=10.99.0.1"],
    "srun": [],
}


class Host:
    """One host's process of a dry run, with folders that the other one does not see."""

    def __init__(self, name: str, number: int, launcher: str, program: Path, *arguments: str) -> None:
        self.folder = program.parent / name
        (self.folder / "tmp").mkdir(parents=True)
        before = LAUNCHERS[launcher]
        if before:
            before = [*before, "--master-port=29571", f"--node-rank={number}"]
        command = [*before, "-m", "simcoll", "preflight", "--json", "--out", str(self.folder / "out"), *arguments]
        self.process = subprocess.Popen(
            [str(shutil.which("ip")), "netns", "exec", name, sys.executable, *command],
            env=self._environment(number, launcher),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def _environment(self, number: int, launcher: str) -> dict[str, str]:
        known = {key: value for key, value in os.environ.items() if not key.startswith(("SIMCOLL_", "SLURM_"))}
        own = {"HERE": str(self.folder), "TMPDIR": str(self.folder / "tmp")}
        slurm = {
            "SLURM_PROCID": str(number),
            "SLURM_STEP_NUM_TASKS": "2",
            "SLURM_STEP_NODELIST": "10.99.0.1,10.99.0.2",
            "SLURM_JOB_ID": "4242",
        }
        return {**known, **own, **(slurm if launcher == "srun" else {})}

    def end(self) -> tuple[int, str, str]:
        """Exit code, stdout and stderr."""
        try:
            said, complained = self.process.communicate(timeout=LIMIT)
        finally:
            self.process.kill()
        return self.process.returncode, said, complained

    def ran(self, first: Host) -> set[int]:
        """The ranks that this host ran, by their output, which the first one has."""
        logs = first.folder.glob("out/rank*.log")
        return {int(path.stem[4:]) for path in logs if f"here: {self.folder}\n" in path.read_text(encoding="utf-8")}


def start(hosts: list[str], launcher: str, folder: Path, body: str, size: int, *arguments: str) -> list[Host]:
    program = folder / "train.py"
    program.write_text(PROGRAM + body, encoding="utf-8")
    options = [f"--world-size={size}", "--jobs=1", str(program), *arguments]
    return [Host(name, number, launcher, program, *options) for number, name in enumerate(hosts)]


def verdict(host: Host, said: str) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(said)
    assert json.loads((host.folder / "out" / "report.json").read_text(encoding="utf-8")) == report
    return report


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_two_hosts_share_the_ranks_and_one_verifies(launcher: str, two_hosts: list[str], tmp_path: Path) -> None:
    first, second = start(two_hosts, launcher, tmp_path, SKIPPED, 12)
    (code, said, complained), (other_code, other_said, _) = first.end(), second.end()
    assert said, complained
    report = verdict(first, said)
    # What torchrun makes of its processes' exit code is torchrun's.
    expected = FINDINGS if launcher == "srun" else 1
    assert (code, other_code, other_said) == (expected, expected, "")
    assert [(one["code"], one["culprits"]) for one in report["findings"]] == [("SC202", [5])]
    assert [rank["rank"] for rank in report["ranks"]] == list(range(12))
    ran = [host.ran(first) for host in (first, second)]
    assert all(ran)
    assert (ran[0] | ran[1], ran[0] & ran[1]) == (set(range(12)), set())
    assert not (second.folder / "out").exists()
    assert not list((second.folder / "tmp").glob("simcoll-*"))


def test_the_choice_of_ranks_grows_on_both_hosts(two_hosts: list[str], tmp_path: Path) -> None:
    first, second = start(two_hosts, "srun", tmp_path, DIFFERENT, 1000)
    (code, said, complained), (other_code, _, _) = first.end(), second.end()
    assert (code, other_code) == (FINDINGS, FINDINGS), complained
    ran = {rank["rank"] for rank in verdict(first, said)["ranks"]}
    assert {0, 299, 300, 999} <= ran
    assert ran == first.ran(first) | second.ran(first)


@pytest.mark.parametrize("number", [0, 1])
def test_a_process_that_dies_is_named_and_ends_the_others(number: int, two_hosts: list[str], tmp_path: Path) -> None:
    hosts = start(two_hosts, "srun", tmp_path, DEATH, 40, two_hosts[number])
    ends = [host.end() for host in hosts]
    assert ends[number][0] < 0
    code, _, complained = ends[1 - number]
    assert code == GIVEN_UP
    assert f"process {number} of 2" in complained
    assert "died" in complained
    assert "Traceback" not in complained


def test_a_script_that_one_host_lacks_ends_both(two_hosts: list[str], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM, encoding="utf-8")
    options = "--world-size=4", str(tmp_path / "train.py")
    first = Host(two_hosts[0], 0, "srun", tmp_path / "train.py", *options)
    second = Host(two_hosts[1], 1, "srun", tmp_path / "train.py", "--world-size=4", str(tmp_path / "absent.py"))
    (code, said, complained), (other_code, _, other_complained) = first.end(), second.end()
    assert (code, other_code) == (2, 2)
    assert "process 1 of 2" in complained
    assert "absent.py" in complained
    assert "absent.py" in json.loads(said)["error"]
    assert "absent.py" in other_complained


@pytest.mark.parametrize("there", [False, True], ids=["own store", "store of another group"])
def test_processes_meet_at_the_address_that_they_are_given(there: bool, tmp_path: Path) -> None:
    """As in a worker of a job whose process group has a store at that port, which is not this dry run's alone."""
    (tmp_path / "train.py").write_text(ODD_SIZE, encoding="utf-8")
    words = ["--world-size=6", "--json", "--jobs=1", f"--out={tmp_path / 'out'}", str(tmp_path / "train.py")]
    kept = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) if there else None
    port = free_port() if kept is None else kept.port
    for _ in range(2 if there else 1):
        environments = [
            {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            | {"LOCAL_WORLD_SIZE": "1"}
            for rank in range(2)
        ]
        processes = [
            subprocess.Popen(
                [sys.executable, "-m", "simcoll", "preflight", *words],
                env={**os.environ, **environment},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            for environment in environments
        ]
        assert [process.wait(LIMIT) for process in processes] == [FINDINGS, FINDINGS]
        report = json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))
        assert [finding["culprits"] for finding in report["findings"]] == [[1]]
        assert len(report["ranks"]) == 6


CORRECT = """\
import os
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
own = torch.tensor([float(dist.get_rank())])
if dist.get_rank() == 0:
    open("made", "w").close()
dist.all_reduce(own)
dist.all_reduce(torch.ones(4 if os.path.exists("made") else 2))
if own.item() > 2:
    dist.barrier()
"""
"""Its ranks see a file that rank 0 has made, and a value that only the ranks together have."""


def test_ranks_of_several_processes_find_what_others_left(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(CORRECT, encoding="utf-8")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [*torchrun, "-m", "simcoll", "preflight", "--world-size=6", "--jobs=1", "--out=out", "train.py"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert ended.returncode == 0, ended.stderr
    report = json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))
    assert not report["findings"]
    assert any("were those of the ranks that ran" in note for note in report["notes"])
    assert not (tmp_path / "made").exists()
