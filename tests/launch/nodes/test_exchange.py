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

from simcoll.blackbox.table import KnownEntries
from simcoll.blackbox.tail import BoxTail
from simcoll.launch.nodes.head import SUMMARY_SECONDS
from simcoll.launch.nodes.wire import LOST_VARIABLE
from simcoll.live.now import Doing
from simcoll.live.watch import JobWatch

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

ALL = "dist.all_reduce(torch.ones(4))"

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
    hosts: list[str],
    folder: Path,
    body: str,
    *options: str,
    ranks: int = 1,
    outs: dict[int, Path] | None = None,
    lost: float = 10.0,
) -> Iterator[Job]:
    script = folder / "train.py"
    script.write_text(HEAD + textwrap.dedent(body))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SIMCOLL_")}
    environment |= {"GLOO_SOCKET_IFNAME": "scwire", "OMP_NUM_THREADS": "1", "HERE": str(folder)}
    environment[LOST_VARIABLE] = str(lost)
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


def findings(report: dict[str, Any]) -> Any:
    """What a report finds, without times, and without which of the ranks that do the same came first."""
    return [
        (
            *(one[name] for name in ("code", "ranks", "culprits", "sequence")),
            [(side["ranks"], side["note"], side["source"][0]["line"]) for side in one["sides"]],
        )
        for one in report["findings"]
    ]


def test_four_nodes_find_what_one_folder_shows(four_hosts: list[str], tmp_path: Path) -> None:
    """A rank of the last node does not come: the job is ended on all nodes, and its line is in the report of node 0."""
    found = {}
    for way in ("apart", "shared"):
        outs = dict.fromkeys(range(4), tmp_path / "one") if way == "shared" else None
        with started(four_hosts, tmp_path, LATE, "--stall=3", outs=outs) as job:
            ends = job.ends()
        assert [code for code, _ in ends] == [3] * 4, ends
        report = json.loads((tmp_path / ("one" if outs else "out0") / "report.json").read_text())
        found[way] = findings(report), [rank["rank"] for rank in report["ranks"]], report["notes"]
        place = report["findings"][0]["sides"][-1]["source"][0]
        assert (place["function"], place["code"]) == ("evaluate", "threading.Event().wait(600)")
        assert "the report on all ranks is that of node 0" in ends[3][1]
    assert found["apart"] == found["shared"]
    assert [(code, culprits) for code, _, culprits, *_ in found["apart"][0]] == [("SC201", [3])]


def test_a_deadlock_across_nodes_is_proved(two_hosts: list[str], tmp_path: Path) -> None:
    body = """
    groups = [dist.new_group([0, 1]), dist.new_group([0, 1])]
    dist.all_reduce(torch.ones(1), group=groups[rank])
    dist.all_reduce(torch.ones(1), group=groups[1 - rank])
    """
    with started(two_hosts, tmp_path, body, "--mode=record", "--stall=3") as job:
        ends = job.ends()
    assert [code for code, _ in ends] == [3, 3], ends
    assert [one["code"] for one in job.report()["findings"]] == ["SC204"]


WAIT = """
here = os.environ["HERE"]
open(os.path.join(here, f"ready{rank}"), "w").close()
while not os.path.exists(os.path.join(here, "go")):
    time.sleep(0.05)
"""


def test_a_node_that_is_killed_costs_its_own_records_only(two_hosts: list[str], tmp_path: Path) -> None:
    """It was in the call in which the other rank fails: that rank is not told to be late."""
    with started(
        two_hosts, tmp_path, "if rank == 0:" + textwrap.indent(WAIT, "    ") + "\n" + ALL, "--mode=record", lost=3.0
    ) as job:
        job.await_files("ready0")
        # Node 0 asks once a second: it has heard of the rank when its box has the call.
        heard_of(tmp_path / "out1" / "rank00001.simcoll", records=4)
        time.sleep(2 * SUMMARY_SECONDS)
        kill_all(job.commands[1].pid)
        job.go("go")
        said = job.commands[0].communicate(timeout=100)[0]
    assert job.commands[0].returncode == 3, said
    report = job.report()
    [finding] = report["findings"]
    assert (finding["code"], finding["ranks"], finding["culprits"]) == ("SC701", [0], []), said
    [note] = [note for note in report["notes"] if note.startswith("node 1 (")]
    assert ", rank 1) was lost, its records did not come" in note
    assert "rank 1 started all_reduce (collective 4 of group 0)" in note
    advice = report["advice"]
    assert (advice["rule"], advice["cause"], advice["ranks"]) == ("lost node", "machine", [1])


@pytest.mark.parametrize(("mode", "codes"), [("record", ["SC701", "SC701"]), ("detail", ["SC201", "SC701"])])
def test_hosts_that_lose_each_other_report_on_their_own_ranks(
    two_hosts: list[str], tmp_path: Path, mode: str, codes: list[str]
) -> None:
    """In mode detail the rank that cannot reach the store either does not wait for its answer."""
    body = "group = dist.new_group(timeout=timedelta(seconds=3))\ndist.all_reduce(torch.ones(4), group=group)\n"
    with started(
        two_hosts, tmp_path, body + WAIT + "dist.all_reduce(torch.ones(4), group=group)", f"--mode={mode}", lost=3.0
    ) as job:
        job.await_files("ready0", "ready1")
        time.sleep(2 * SUMMARY_SECONDS)  # node 0 asks once a second: it has heard of the other one
        subprocess.run(["ip", "-n", two_hosts[1], "link", "set", "scwire", "down"], check=True)
        job.go("go")
        ends = job.ends()
    assert [code for code, _ in ends] == [3, 3], ends
    assert "node 0 did not answer at 10.99.0.1 port" in ends[1][1]
    assert [[one["code"] for one in job.report(host)["findings"]] for host in (0, 1)] == [[code] for code in codes], (
        ends
    )
    causes = [(one["rule"], one["cause"]) for host in (0, 1) if (one := job.report(host)["advice"])]
    assert causes == [("lost node", "network")] * 2, ends
    assert any(note.startswith("node 1 (") and "was lost" in note for note in job.report()["notes"])


def test_who_looks_at_node_0_sees_where_the_others_are(two_hosts: list[str], tmp_path: Path) -> None:
    """Rank 1 of the other host does not come: node 0's folder has no record of it."""
    with started(two_hosts, tmp_path, LATE, "--mode=record"):
        watch, deadline = JobWatch(tmp_path / "out0"), time.monotonic() + 60
        told = [(1, Doing.RUNS, "completed all_reduce (collective 3 of group 0)")]
        while True:
            seen = watch.look()
            remote = [] if seen is None else [(one.rank, one.doing, one.place) for one in seen.ranks if one.place]
            if seen is not None and seen.ranks[0].doing is Doing.WAITS and remote == told:
                break
            assert time.monotonic() < deadline, remote
            time.sleep(0.2)
        assert seen.unseen == ()
        assert seen.why.endswith("; rank 1 records on other nodes, as node 0 was told")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=7m", "tmpfs", folder], check=False)
    if mounted.returncode:
        pytest.skip("a tmpfs cannot be mounted here")
    yield folder
    subprocess.run(["umount", folder], check=True)


@pytest.mark.parametrize("full", [0, 1])
def test_a_full_disk_costs_what_does_not_fit(two_hosts: list[str], tmp_path: Path, small_disk: Path, full: int) -> None:
    body = f"""
    if rank == {full}:
        with open({str(small_disk / "filler")!r}, "wb", buffering=0) as file:
            try:
                while file.write(bytes(4096)):
                    pass
            except OSError:
                pass
    dist.all_reduce(torch.ones(4), op=dist.ReduceOp.MAX if rank == 1 else dist.ReduceOp.SUM)
    """
    with started(two_hosts, tmp_path, body, outs={full: small_disk}) as job:
        ends = job.ends()
    assert [code for code, _ in ends] == [3, 3], ends
    said = ends[0][1]
    assert "SC104 reduce-op-mismatch" in said
    assert "rank 0 reduces with sum, rank 1 reduces with max" in said
    assert ("its records did not come: they cannot be kept: No space left on device" in " ".join(said.split())) == (
        full == 0
    )


def heard_of(path: Path, records: int) -> None:
    """Wait until a black box has so many records."""
    tail = BoxTail(path, 8, KnownEntries())
    deadline = time.monotonic() + 60
    while tail.newest < records:
        assert time.monotonic() < deadline
        time.sleep(0.05)
        tail.look()


def kill_all(pid: int) -> None:
    """Kill a process and all that it has started, as a node that loses its power does."""
    os.kill(pid, signal.SIGSTOP)
    below = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    for child in map(int, below):
        kill_all(child)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
