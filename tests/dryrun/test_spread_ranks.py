"""A dry run whose ranks an executor runs: the same verdict, also where ranks want what other tasks' ranks have left."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from simcoll.core.executors import Spread
from simcoll.core.process import stat_of
from simcoll.errors import ExecutorError
from simcoll.verifier.findings.finding import Report
from tests.support import engines

pytest.importorskip("torch")

from simcoll.dryrun.driver import DryRunPlan, Runner, run_and_judge
from simcoll.dryrun.rank.settings import DryRun
from simcoll.dryrun.spread_ranks import SpreadRanks
from simcoll.launch.preconditions import PreconditionError

pytestmark = [pytest.mark.slow]

LIMIT = 240
HEAD = """\
import os, torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
tensor = torch.ones(4)
dist.all_reduce(tensor)
"""
WRONG = "dist.all_reduce(tensor[:2] if rank == 2 else tensor)"
SHARED = """
if rank == 0:
    open("made", "w").write("x")
dist.barrier()
assert open("made").read() == "x"
"""
GUESSED = """
own = torch.tensor([float(rank)])
dist.all_reduce(own)
if own.item() > 2:
    dist.barrier()
"""


def judged(folder: Path, body: str, spread: Spread, size: int = 3) -> Report:
    (folder / "train.py").write_text(HEAD + body, encoding="utf-8")
    out = folder / "out"
    out.mkdir()
    dry_run = DryRun(folder / "train.py", [], size, size, out, cuda=False)
    plan = DryRunPlan(range(size), LIMIT)
    ranks = SpreadRanks(spread, plan)
    return run_and_judge(dry_run, plan, None, Runner(ranks.run, ranks.ran_at.were_parted))[0]


def in_threads(slots: int) -> Spread:
    """Tasks of real processes, without a cluster."""
    return Spread(ThreadPoolExecutor(slots), "here", lambda: slots)


def test_tasks_run_ranks_and_what_is_wrong_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    report = judged(tmp_path, WRONG, in_threads(2))
    assert [(one.code, one.culprits) for one in report.findings] == [("SC102", (2,))]
    assert not report.notes
    logs = sorted(path.name for path in (tmp_path / "out").glob("rank*"))
    assert logs == sorted(f"rank{rank:05d}.{kind}" for rank in range(3) for kind in ("log", "simcoll"))


@pytest.mark.parametrize(
    ("body", "note"), [(SHARED, "left files or objects for each other"), (GUESSED, "were those of the ranks that ran")]
)
@pytest.mark.nightly
def test_a_correct_program_is_silent(body: str, note: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    report = judged(tmp_path, body, in_threads(3))
    assert not report.findings
    assert any(note in one for one in report.notes)
    assert not (tmp_path / "made").exists()


def test_a_worker_that_lacks_the_program_or_dies_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    class Elsewhere(ThreadPoolExecutor):
        def submit(self, function: Callable[..., object], /, *args: str, **_: object) -> object:  # type: ignore[override]
            return super().submit(function, args[0].replace(str(tmp_path), str(tmp_path / "gone")))

    with pytest.raises(PreconditionError, match="has to be there on every worker"):
        judged(tmp_path, "", Spread(Elsewhere(1), "here", lambda: 1))
    monkeypatch.setattr("simcoll.dryrun.spread_ranks._START", "import os; os.kill(os.getpid(), 9)")
    (tmp_path / "out").rmdir()
    with pytest.raises(ExecutorError, match="the process that ran ranks ended by SIGKILL"):
        judged(tmp_path, "", in_threads(1))


KILLED = """
if rank == 5:
    import socket
    with socket.create_connection(("127.0.0.1", {port})) as line:
        line.sendall(str(os.getpid()).encode())
        line.recv(1)
"""


def end_worker_once(server: socket.socket) -> None:
    """Kill the worker below which the first rank that calls runs, and let the next one go on."""
    with server.accept()[0] as first:
        rank = first.recv(16).decode()
        # Below the worker is the task, below that the rank's keeper.
        above = rank
        for _ in ("keeper", "task", "worker"):
            stat = stat_of(above)
            assert stat is not None
            above = str(stat.parent)
        os.kill(int(above), signal.SIGKILL)
    server.accept()[0].close()


@pytest.mark.nightly
@pytest.mark.parametrize("engine", engines.ENGINES)
def test_the_command_on_a_cluster_one_of_whose_workers_is_killed(engine: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "simcoll", "preflight", "--plain", "--device", "cpu", "--world-size", "6"]
    with engines.cluster(engine, tmp_path) as address, socket.create_server(("127.0.0.1", 0)) as server:
        program = HEAD + KILLED.format(port=server.getsockname()[1]) + WRONG
        (tmp_path / "train.py").write_text(program, encoding="utf-8")
        killer = threading.Thread(target=end_worker_once, args=(server,), daemon=True)
        killer.start()
        ended = subprocess.run(
            [*command, "--executor", address, "--out", str(tmp_path / "out"), "train.py"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )
        killer.join(LIMIT)
    assert ended.returncode == 3, ended.stderr
    assert "SC102" in ended.stdout
    assert "rank 2" in ended.stdout
