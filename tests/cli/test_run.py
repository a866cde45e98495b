"""``simcoll run`` on real Gloo ranks: what the screen, the folder and the exit code say when a job has ended."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap

import pytest

from simcoll.blackbox import read_black_box

pytest.importorskip("torch")
pytestmark = [pytest.mark.slow, pytest.mark.gloo]

HEAD = """
import os, signal, sys
import torch
import torch.distributed as dist
rank = int(os.environ["RANK"])
def start():
    dist.init_process_group("gloo")
"""


def script(folder, body, name="train.py"):
    path = folder / name
    path.write_text(HEAD + textwrap.dedent(body))
    return path


def start(folder, *arguments, env=None):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SIMCOLL_")}
    command = [sys.executable, "-m", "simcoll", "run", *map(str, arguments)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=folder, env=environment | {"NO_COLOR": "1"} | (env or {}), **pipes)


def run(folder, *arguments, ranks=2, env=None):
    job = start(folder, "--nproc-per-node", ranks, *arguments, env=env)
    out, err = job.communicate(timeout=120)
    return job.returncode, out, err


def report_of(folder):
    return json.loads((folder / "report.json").read_text())


# A program that leaves its group to the interpreter's end aborts now and then, under plain torchrun too.
AGREE = """
start()
t = torch.ones(4)
for _ in range(5):
    dist.all_reduce(t)
dist.destroy_process_group()
print("trained")
"""
DISAGREE = """
    start()
    t = torch.ones(4)
    dist.all_reduce(t)
    dist.all_reduce(t, op=dist.ReduceOp.MAX if rank == 2 else dist.ReduceOp.SUM)
"""


def test_a_clean_job_ends_with_one_line(tmp_path):
    code, out, _ = run(tmp_path, "--out", "results", script(tmp_path, AGREE))
    assert code == 0
    assert out.splitlines()[-1] == "simcoll: 5 collectives on 2 ranks agree"
    names = {path.name for path in (tmp_path / "results").iterdir()}
    assert names == {"rank00000.simcoll", "rank00001.simcoll", "report.json", "report.html", "launch.json"}
    assert report_of(tmp_path / "results")["verdict"] == "ok"


def test_a_mismatch_is_reported_last_with_culprit_and_line(tmp_path):
    path = script(tmp_path, DISAGREE)
    code, out, err = run(tmp_path, "--out", "results", path, ranks=4)
    assert code == 3
    assert "SC104" in out
    assert "CollectiveMismatchError" in err
    assert err.count("Traceback") == 1
    assert "Root Cause (first observed failure)" not in err
    report = report_of(tmp_path / "results")
    assert [(finding["code"], finding["culprits"]) for finding in report["findings"]] == [("SC104", [2])]
    sources = [source for side in report["findings"][0]["sides"] for source in side["source"]]
    assert {source["line"] for source in sources} == {12}
    assert 2 in {source["rank"] for source in sources}
    assert {entry["state"] for entry in report["ranks"]} <= {"failed", "stopped"}


def test_json_is_the_only_thing_on_stdout(tmp_path):
    code, out, err = run(tmp_path, "--json", "--mode", "record", script(tmp_path, AGREE))
    assert (code, json.loads(out)["mode"]) == (0, "record")
    assert "trained" in err


def test_the_default_folder_and_a_bare_script(tmp_path):
    job = start(tmp_path, script(tmp_path, AGREE))
    out, _ = job.communicate(timeout=120)
    assert (job.returncode, out.splitlines()[-1]) == (0, "simcoll: 5 collectives on 1 rank agree")
    assert [len(list(folder.glob("rank*.simcoll"))) for folder in (tmp_path / "simcoll-out").iterdir()] == [1]


@pytest.mark.parametrize(
    ("body", "reason", "advice"),
    [
        ("print('plain')", "no rank imported torch", "start the program that trains"),
        ("import torch", "the program created no process group", "has to call torch.distributed.init_process_group"),
    ],
)
def test_a_program_without_a_group(body, reason, advice, tmp_path):
    (tmp_path / "train.py").write_text(body)
    code, out, err = run(tmp_path, "train.py")
    assert (code, out.splitlines()[-1]) == (0, f"simcoll: no collective was recorded: {reason}")
    assert advice in err


def test_a_job_needs_no_port_that_another_one_has(tmp_path):
    """29500, where torchrun's ranks meet unless they are told otherwise, is taken as by another job."""
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):  # then another job has it indeed
            held.enter_context(socket.create_server(("", 29500)))
        job = start(tmp_path, "--nproc-per-node", "2", script(tmp_path, AGREE))
        out, _ = job.communicate(timeout=120)
    assert (job.returncode, out.splitlines()[-1]) == (0, "simcoll: 5 collectives on 2 ranks agree")


def test_a_program_that_fails_before_its_first_group(tmp_path):
    code, _, err = run(tmp_path, script(tmp_path, "import no_such_module_here"))
    assert code == 1
    assert "ModuleNotFoundError" in err


def test_modules_commands_and_arguments_pass_through(tmp_path):
    script(tmp_path, AGREE + "print(sys.argv[1:])\n", "trainer.py")
    code, out, _ = run(tmp_path, "--standalone", "-m", "trainer", "--mode", "x")
    assert code == 0
    assert "['--mode', 'x']" in out
    code, out, _ = run(tmp_path, "--no-python", sys.executable, "trainer.py", "--json")
    assert code == 0
    assert out.splitlines()[-1] == "simcoll: 5 collectives on 2 ranks agree"


def test_a_launcher_in_the_place_of_a_rank_hides_no_finding(tmp_path):
    """It fails where its ranks do, and is itself rank 0 by its environment: it must not replace the rank's record."""
    path = script(tmp_path, DISAGREE)
    inner = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3", path]
    code, _, err = run(tmp_path, "--out", "results", *inner, ranks=1)
    assert code == 3, err
    assert "ChildFailedError" in err
    report = report_of(tmp_path / "results")
    assert [(finding["code"], finding["culprits"]) for finding in report["findings"]] == [("SC104", [2])]
    assert "raised the same error; " in err
    names = {path.name for path in (tmp_path / "results").iterdir() if not path.name.endswith(".traceback.txt")}
    accounts = {"report.json", "report.html", "launch.json", "host.json"}
    assert names == {*(f"rank{rank:05d}.simcoll" for rank in range(3)), *accounts}


def test_ranks_that_a_launcher_within_the_job_ends_leave_no_empty_files(tmp_path):
    body = """
        start()
        dist.all_reduce(torch.ones(4))
        if rank == 0:
            sys.exit(5)
        signal.pause()
    """
    inner = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", script(tmp_path, body)]
    run(tmp_path, "--out", "results", *inner, ranks=1)
    names = {path.name for path in (tmp_path / "results").iterdir()}
    assert names >= {"rank00000.simcoll", "rank00001.simcoll"}
    assert not {name for name in names if "stack" in name}


def test_mode_off_is_torchrun(tmp_path):
    code, out, _ = run(tmp_path, "--mode", "off", script(tmp_path, AGREE + "print('simcoll' in sys.modules)"))
    assert (code, "False" in out or "True" in out, "agree" in out) == (0, True, False)
    assert not (tmp_path / "simcoll-out").exists()
    code, out, _ = run(tmp_path, "--mode", "off", "--json", script(tmp_path, "sys.exit(5)"))
    assert (code, json.loads(out)["verdict"]) == (1, "failed")


def test_a_rank_that_is_killed_is_named(tmp_path):
    body = """
        start()
        t = torch.ones(4)
        for step in range(100):
            dist.all_reduce(t)
            if rank == 1 and step == 50:
                os.kill(os.getpid(), signal.SIGKILL)
    """
    code, out, _ = run(tmp_path, "--out", "results", script(tmp_path, body))
    assert code == 3
    assert "SC701" in out
    finding = report_of(tmp_path / "results")["findings"][0]
    assert finding["code"] == "SC701"
    assert "SIGKILL" in finding["message"]
    assert 1 in finding["ranks"]
    assert read_black_box(tmp_path / "results" / "rank00001.simcoll").record(-1).sequence == 51


def test_a_second_run_replaces_the_results_of_the_first(tmp_path):
    path = script(tmp_path, AGREE)
    assert run(tmp_path, "--out", "results", path, ranks=3)[0] == 0
    code, out, _ = run(tmp_path, "--out", "results", path)
    assert (code, out.splitlines()[-1]) == (0, "simcoll: 5 collectives on 2 ranks agree")
    assert len(list((tmp_path / "results").glob("rank*"))) == 2


def test_the_last_attempt_of_an_elastic_job_is_reported(tmp_path):
    body = """
        # The agent's store keeps the addresses of the first attempt, and plain Gloo stumbles over them: a store each.
        attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
        store = dist.FileStore(f"store{attempt}", 2)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
        dist.all_reduce(torch.ones(1))
        if attempt == "0":
            sys.exit(1)
        dist.all_reduce(torch.ones(1))
        dist.destroy_process_group()
    """
    code, out, _ = run(tmp_path, "--max-restarts", "1", script(tmp_path, body))
    assert (code, out.splitlines()[-1]) == (0, "simcoll: 2 collectives on 2 ranks agree")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_job_and_still_gives_the_report(tmp_path, number):
    body = """
        start()
        dist.all_reduce(torch.ones(1))
        print("waiting", flush=True)
        signal.sigwait([signal.SIGUSR1])
    """
    job = start(tmp_path, "--nproc-per-node=2", "--out=results", script(tmp_path, body))
    # Two ranks write to one pipe: their lines may mix.
    said = "waiting\n" * 2
    assert sorted(job.stdout.read(len(said))) == sorted(said)
    job.send_signal(number)
    # communicate() returns when every process of the job has closed the pipes.
    out, err = job.communicate(timeout=60)
    assert job.returncode == 128 + number
    assert "Traceback (most recent call last)" not in out
    assert f"ended from outside by {number.name}" in err
    assert report_of(tmp_path / "results")["findings"] == []


def test_a_launcher_that_is_killed_still_gives_the_report(tmp_path):
    body = """
        start()
        dist.all_reduce(torch.ones(1))
        dist.barrier()
        if rank == 0:
            os.kill(os.getppid(), signal.SIGKILL)
        signal.sigwait([signal.SIGUSR1])
    """
    code, _, err = run(tmp_path, "--out", "results", script(tmp_path, body))
    assert code == 1
    assert "the launcher was killed by SIGKILL; the ranks that it left were killed" in err
    assert (tmp_path / "results" / "report.json").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["--nonsense", "train.py"], 2, "unrecognized arguments: --nonsense\n"),
        (["--valeus", "all", "train.py"], 2, "unrecognized arguments: --valeus, expected --values\n"),
        (["--rdzv_bakend=c10d", "train.py"], 2, "--rdzv_bakend=c10d, expected --rdzv-backend\n"),
        (["--nproc-per-node=abc", "train.py"], 2, "Unsupported nproc_per_node value: abc"),
        (["--stall", "soon", "train.py"], 2, "--stall soon: expected a number of seconds greater than 0"),
        (["broken.py"], 1, "broken.py:1: SyntaxError"),
    ],
)
def test_bad_input_is_one_line(tmp_path, arguments, code, text):
    script(tmp_path, "")
    (tmp_path / "broken.py").write_text("fro x import y\n")
    job = start(tmp_path, *arguments)
    out, err = job.communicate(timeout=60)
    assert (job.returncode, out, err.count("\n")) == (code, "", 1)
    assert err.startswith("simcoll: ")
    assert text in err


@pytest.fixture
def small_disk(tmp_path, request):
    """A folder with a file system of its own, of so much."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={request.param}", "none", str(disk)]
    if subprocess.run(mount, check=False).returncode != 0:
        pytest.skip("this machine does not let root mount a tmpfs")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


@pytest.mark.parametrize("small_disk", ["20m"], indirect=True)
def test_a_disk_that_fills_up_beside_a_hang_keeps_the_finding(tmp_path, small_disk):
    body = """
        start()
        dist.all_reduce(torch.ones(1))
        if rank == 0:
            with open("disk/fill", "wb", buffering=0) as file, contextlib.suppress(OSError):
                while file.write(bytes(65536)):
                    pass
            threading.Event().wait()
        dist.all_reduce(torch.ones(1))
    """
    program = script(tmp_path, "import contextlib, threading\n" + textwrap.dedent(body))
    code, out, err = run(tmp_path, "--stall", "3", "--out", small_disk / "job", program)
    assert (code, "SC201" in out, "culprits: rank 0" in out) == (3, True, True)
    assert "No space left on device" in err
    assert "killed by" not in err


@pytest.mark.parametrize("small_disk", ["5m"], indirect=True)
def test_a_full_disk_is_one_line(tmp_path, small_disk):
    disk = small_disk
    code, out, err = run(tmp_path, "--out", disk, script(tmp_path, AGREE))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert f"cannot write results into {disk}: No space left on device" in err


def test_a_job_does_not_fail_for_results_that_were_removed(tmp_path):
    removing = (
        AGREE
        + """
import os, shutil
# The launcher may write its account of a rank that has ended while the folder is emptied.
while rank == 0 and os.path.isdir("out"):
    shutil.rmtree("out", ignore_errors=True)
"""
    )
    code, out, err = run(tmp_path, "--out", "out", script(tmp_path, removing))
    assert (code, out.count("trained")) == (0, 2)
    lost = "the job ended well; what was written about it is not in out any more"
    assert "".join(out.split()).endswith("".join(lost.split()))
    assert err.count("cannot write") == 1
    assert "Traceback" not in err
