"""Ranks of a dry run as processes: limits, interrupts, what they start and leave behind, how they are launched."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

pytestmark = [pytest.mark.slow]

LIMIT = 180
HEAD = """\
import os, subprocess, sys, time
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

def begin(**stated):
    dist.init_process_group("nccl", **stated)
    return dist.get_rank()
"""

LEAVE = """
begin()
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", sys.argv[1]])
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", sys.argv[1]], start_new_session=True)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execv(sys.executable, [sys.executable, "-c", "import time; time.sleep(600)", sys.argv[1]])
    os._exit(0)
dist.barrier()
"""
"""A child, one in a session of its own, and a daemon."""

LOADERS = """
class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, index):
        return torch.tensor(float(index))

if __name__ == "__main__":
    begin()
    for context in ("fork", "spawn", "forkserver"):
        loader = torch.utils.data.DataLoader(
            Numbers(), 2, num_workers=1, multiprocessing_context=context, persistent_workers=True
        )
        for batch in loader:
            dist.all_reduce(batch)
"""

MAIN = """
def main(rank, size, how):
    if how == "environment":
        os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size)}
        begin()
    elif how == "address":
        begin(init_method=f"tcp://localhost:29555?rank={rank}&world_size={size}")
    else:
        begin(rank=rank, world_size=size)
    assert dist.get_rank() == rank
    dist.all_reduce(torch.ones(5 if rank == 1 else 4))
    dist.destroy_process_group()

if __name__ == "__main__":
    launcher, how, size = sys.argv[1], sys.argv[2], int(sys.argv[3])
    if launcher == "mp.spawn":
        mp.spawn(main, args=(size, how), nprocs=size)
    elif launcher == "start_processes":
        context = mp.start_processes(main, args=(size, how), nprocs=size, join=False, start_method="fork")
        while not context.join():
            pass
    else:
        context = mp.get_context(launcher)
        processes = [context.Process(target=main, args=(rank, size, how)) for rank in range(size)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
            assert process.exitcode == 0
"""


def command(folder: Path, body: str, *options: object) -> list[str]:
    script = folder / "train.py"
    script.write_text(HEAD + body, encoding="utf-8")
    words = ["-m", "simcoll", "preflight", "--json", "--out", folder / "out", *options]
    place = words.index("SCRIPT") if "SCRIPT" in words else len(words)
    words[place : place + 1] = [script]
    return [sys.executable, *map(str, words)]


def preflight(folder: Path, body: str, *options: object) -> tuple[int, dict[str, Any]]:
    done = subprocess.run(
        command(folder, body, *options), cwd=folder, capture_output=True, text=True, timeout=LIMIT, check=False
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def notes(report: dict[str, Any]) -> str:
    return " | ".join(report["notes"])


def processes_with(mark: str) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if mark.encode() in path.read_bytes() and int(path.parent.name) != os.getpid():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def eventually(test: Any) -> bool:
    limit = time.monotonic() + 30
    while not test() and time.monotonic() < limit:
        time.sleep(0.05)
    return bool(test())


def test_nothing_that_a_rank_starts_outlives_it(tmp_path: Path) -> None:
    mark = f"mark-{tmp_path}"
    code, report = preflight(tmp_path, LEAVE, "--world-size", 2, "SCRIPT", mark)
    assert (code, report["findings"]) == (0, [])
    assert processes_with(mark) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_end_from_outside_ends_the_ranks_and_what_they_started(number: signal.Signals, tmp_path: Path) -> None:
    mark = f"mark-{tmp_path}"
    body = LEAVE + "print('began', flush=True)\ntime.sleep(600)\n"
    arguments = command(tmp_path, body, "--world-size", 2, "--jobs", 2, "SCRIPT", mark)
    started = subprocess.Popen(arguments, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    logs = tmp_path / "out"
    assert eventually(lambda: sum("began" in path.read_text(encoding="utf-8") for path in logs.glob("*.log")) == 2)
    for _ in range(2 if number == signal.SIGTERM else 1):  # timeout(1) sends it to the process and to its group
        started.send_signal(number)
    _, complained = started.communicate(timeout=60)
    assert started.returncode == (130 if number == signal.SIGINT else -number)
    assert "Traceback" not in complained
    assert eventually(lambda: not processes_with(mark))
    assert len(list((tmp_path / "out").glob("*.simcoll"))) == 2
    if number != signal.SIGKILL:
        assert {path.name.partition(".")[2] for path in logs.iterdir()} <= {"simcoll", "log"}


def test_loaders_of_all_kinds_work(tmp_path: Path) -> None:
    code, report = preflight(tmp_path, LOADERS, "--world-size", 2)
    assert (code, report["findings"]) == (0, [])
    assert {rank["last"]["sequence"] for rank in report["ranks"]} == {6}


@pytest.mark.parametrize("launcher", ["mp.spawn", "start_processes", "fork", "spawn"])
@pytest.mark.parametrize("how", ["arguments", "environment", "address"])
def test_of_the_ranks_that_a_script_starts_each_runs_once(launcher: str, how: str, tmp_path: Path) -> None:
    code, report = preflight(tmp_path, MAIN, "--world-size", 3, "SCRIPT", launcher, how, 3)
    assert [(one["code"], one["culprits"]) for one in report["findings"]] == [("SC102", [1])]
    assert code == 3


RESULTS = """
def main(rank, size, put):
    begin(rank=rank, world_size=size)
    found = torch.tensor([rank])
    dist.all_reduce(found)
    put((rank, int(found)))
    if sys.argv[2] == "fails" and rank == 1:
        raise ValueError("no data on this rank")
    dist.barrier()

def start(launcher, size):
    if launcher == "executor":
        with concurrent.futures.ProcessPoolExecutor(size) as pool:
            found = {}
            list(pool.map(main, range(size), [size] * size, [print] * size))
        return
    if launcher == "elastic_launch":
        config = LaunchConfig(1, 1, size, run_id="one", rdzv_backend="c10d", rdzv_endpoint="localhost:0")
        found = elastic_launch(config, lambda: main(int(os.environ["RANK"]), size, print))()
        assert found.keys() == set(range(size))
        return
    queue = mp.get_context("fork").SimpleQueue()
    if launcher == "mp.spawn":
        mp.spawn(main, args=(size, queue.put), nprocs=size)
    else:
        class Rank(mp.get_context("fork").Process):
            def run(self):
                main(self.number, size, queue.put)
        ranks = [Rank() for _ in range(size)]
        for number, rank in enumerate(ranks):
            rank.number = number
            rank.start()
    found = dict(queue.get() for _ in range(size))
    assert found == dict.fromkeys(range(size), size * (size - 1) // 2)

if __name__ == "__main__":
    start(sys.argv[1], 3)
"""
"""Scripts that collect the results of the ranks that they start."""


@pytest.mark.parametrize("launcher", ["mp.spawn", "process", "executor", "elastic_launch"])
def test_results_of_other_ranks_are_not_awaited(launcher: str, tmp_path: Path) -> None:
    imports = "import concurrent.futures\nfrom torch.distributed.launcher.api import LaunchConfig, elastic_launch\n"
    code, report = preflight(tmp_path, imports + RESULTS, "--world-size", 3, "SCRIPT", launcher, "ends")
    assert (code, report["findings"], report["agreed"]) == (0, [], 2)
    assert not report["coverage"]["gaps"]


def test_a_failure_in_a_started_process_is_that_of_its_rank(tmp_path: Path) -> None:
    code, report = preflight(tmp_path, RESULTS, "--world-size", 3, "SCRIPT", "process", "fails")
    assert [(one["code"], one["culprits"]) for one in report["findings"]] == [("SC701", [1])]
    assert code == 3


@pytest.mark.parametrize("launcher", ["mp.spawn", "fork"])
def test_another_world_size_is_said(launcher: str, tmp_path: Path) -> None:
    code, report = preflight(tmp_path, MAIN, "--world-size", 2, "SCRIPT", launcher, "arguments", 4)
    assert code == 1
    assert "of 4, and this is a dry run of 2" in notes(report) + (tmp_path / "out" / "rank00000.log").read_text()


JOBS = """
def main(rank, size):
    begin(rank=rank, world_size=size)
    dist.all_reduce(torch.ones(size + (rank == 1) * int(sys.argv[1])))
    dist.destroy_process_group()

def run(size):
    mp.spawn(main, args=(size,), nprocs=size)

if __name__ == "__main__":
    for size in (4, 2, 4):
        run(size)
"""
"""A script that runs jobs one after the other; given 1, rank 1 disagrees in each."""


def test_a_later_job_of_another_size_is_left_out(tmp_path: Path) -> None:
    code, report = preflight(tmp_path, JOBS, "--world-size", 4, "SCRIPT", 0)
    assert (code, report["findings"], report["agreed"]) == (0, [], 2)
    assert "train.py:16 starts another job, of 2 ranks, which was left out: --world-size 2 would" in notes(report)
    assert report["coverage"]["gaps"] == [f"the job of 2 ranks that {tmp_path}/train.py:16 starts was left out"]


def test_a_job_of_another_size_may_end_its_group_whatever_happens(tmp_path: Path) -> None:
    script = JOBS.replace("    begin(rank=rank, world_size=size)\n", "").replace(
        "    dist.all_reduce", "    try:\n        begin(rank=rank, world_size=size)\n        dist.all_reduce"
    )
    script = script.replace("    dist.destroy", "    finally:\n        dist.destroy")
    code, report = preflight(tmp_path, script, "--world-size", 4, "SCRIPT", 0)
    assert (code, report["findings"], report["agreed"]) == (0, [], 2)
    assert "starts another job, of 2 ranks, which was left out" in notes(report)


def test_a_group_of_another_size_after_a_job_is_refused_with_advice(tmp_path: Path) -> None:
    script = JOBS.replace("for size in (4, 2, 4)", "for size in (4,)") + "    begin(rank=0, world_size=1)\n"
    preflight(tmp_path, script, "--world-size", 4, "SCRIPT", 0)
    said = (tmp_path / "out" / "rank00000.log").read_text()
    assert "ConfigurationError: rank 0: the script says that it is rank 0 of 1, and this is a dry run of 4" in said


def test_jobs_of_the_same_size_are_followed(tmp_path: Path) -> None:
    code, report = preflight(tmp_path, JOBS.replace("4, 2, 4", "4, 4"), "--world-size", 4, "SCRIPT", 1)
    assert [(one["code"], one["culprits"]) for one in report["findings"]] == [("SC102", [1])]
    assert code == 3


def test_a_stated_rank_that_is_not_this_one_is_said(tmp_path: Path) -> None:
    code, report = preflight(tmp_path, "begin(rank=0, world_size=1)", "--world-size", 2)
    assert code == 1
    assert "rank 0 of 1, and this is a dry run of 2" in notes(report)


@pytest.mark.parametrize(
    ("wanting", "said"), [("torch.zeros(int(3e9))", "allocate memory"), ("bytearray(int(3e10))", "MemoryError")]
)
def test_a_limit_of_memory_is_named_with_the_rank(wanting: str, said: str, tmp_path: Path) -> None:
    body = f"begin()\ndist.barrier()\nif dist.get_rank() == 1:\n    kept = {wanting}\ndist.barrier()\n"
    code, report = preflight(tmp_path, body, "--world-size", 2, "--memory", 9)
    assert (code, report["findings"]) == (0, [])
    assert "rank 1 was ended for want of memory (--memory allows 9 GiB" in notes(report)
    assert "what rank 1 wrote is in" in notes(report)
    assert said in (tmp_path / "out" / "rank00001.log").read_text()


def test_too_little_memory_for_torch_itself_is_refused(tmp_path: Path) -> None:
    code, document = preflight(tmp_path, "", "--world-size", 2, "--memory", 0.25)
    assert code == 2
    assert "--memory 0.25: torch alone takes" in document["error"]


@pytest.mark.parametrize("size", [1, 4096])
def test_worlds_of_any_size(size: int, tmp_path: Path) -> None:
    code, report = preflight(tmp_path, "begin()\ndist.all_reduce(torch.ones(2))\n", "--world-size", size)
    assert (code, report["findings"], report["world_size"]) == (0, [], size)


def test_a_program_without_groups_is_said_to_have_none(tmp_path: Path) -> None:
    code, report = preflight(tmp_path, "print(os.environ['WORLD_SIZE'])", "--world-size", 2)
    assert code == 0
    assert "ranks 0-1 made no process group" in notes(report)


def test_an_exit_code_of_a_ranks_own_is_reported(tmp_path: Path) -> None:
    body = "begin()\ndist.barrier()\nif dist.get_rank() == 1:\n    sys.exit(7)\ndist.barrier()\n"
    code, report = preflight(tmp_path, body, "--world-size", 3)
    assert code == 3
    [finding] = report["findings"]
    assert (finding["code"], finding["culprits"]) == ("SC701", [1])
    assert "7" in finding["message"]


def test_ranks_run_in_the_folder_in_which_the_command_was_given(tmp_path: Path) -> None:
    (tmp_path / "settings.txt").touch()
    body = "begin()\nopen('settings.txt').close()\ndist.barrier()\n"
    code, report = preflight(tmp_path, body, "--world-size", 2)
    assert (code, report["findings"]) == (0, [])


def test_a_module_runs_as_pythons_m_runs_it(tmp_path: Path) -> None:
    (tmp_path / "training").mkdir()
    (tmp_path / "training" / "__init__.py").touch()
    (tmp_path / "training" / "other.py").write_text("SIZE = 4\n", encoding="utf-8")
    text = HEAD + "from training.other import SIZE\nassert sys.argv[1:] == ['--local_rank', '0']\n"
    text += "begin()\ndist.all_reduce(torch.ones(SIZE))\n"
    (tmp_path / "training" / "main.py").write_text(text, encoding="utf-8")
    options = "--world-size", 2, "-m", "SCRIPT", "--local_rank", 0
    arguments = [word.replace(str(tmp_path / "train.py"), "training.main") for word in command(tmp_path, "", *options)]
    done = subprocess.run(arguments, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert (done.returncode, json.loads(done.stdout)["findings"]) == (0, []), done.stdout


REFUSED = {
    "no script": (["absent.py"], 2, "absent.py"),
    "no module": (["-m", "absent.train"], 2, "absent"),
    "no such folder": (["--out", "/proc/none", "train.py"], 2, "--out"),
    "a syntax error": (["broken.py"], 1, "broken.py:1"),
    "no numbers": (["--world-size", "0", "train.py"], 2, "--world-size"),
    "a node without GPUs": (["--gpus-per-node", "0", "train.py"], 2, "--gpus-per-node"),
    "no such rank": (["--ranks", "2-9", "train.py"], 2, "--ranks"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_run_is_refused_in_one_line(name: str, tmp_path: Path) -> None:
    words, code, said = REFUSED[name]
    (tmp_path / "train.py").touch()
    (tmp_path / "broken.py").write_text("def (:\n", encoding="utf-8")
    arguments = [sys.executable, "-m", "simcoll", "preflight", "--world-size", "2", *words]
    done = subprocess.run(arguments, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (code, 1), done.stderr
    assert said in done.stderr
