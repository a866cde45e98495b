"""Signals reach a job once, and nothing of it is left running. Processes are followed by a pipe that they hold open."""

import os
import signal
import subprocess
import sys
import textwrap

import pytest

pytestmark = pytest.mark.slow

DRIVER = """
import os, sys
from simcoll.launch.supervisor import run_job
end = run_job([sys.executable, "-c", sys.argv[1]], os.environ)
print(end.exit_code, end.signal, flush=True)
"""

# One write, which no other rank's can come into the middle of.
RANK = "import os, signal; os.write(1, b'up\\n'); signal.sigwait([signal.SIGUSR1])"


def start(launcher):
    """Run a launcher's program under the driver; stdout is one pipe that every process of the job holds."""
    return subprocess.Popen(
        [sys.executable, "-c", DRIVER, textwrap.dedent(launcher)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_launcher_that_is_killed_leaves_nothing_running():
    job = start(
        f"""
        import os, signal, subprocess, sys
        rank = subprocess.Popen([sys.executable, "-c", {RANK!r}], start_new_session=True, stdout=subprocess.PIPE)
        rank.stdout.readline()
        subprocess.Popen([sys.executable, "-c", {RANK!r}], start_new_session=True)
        os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    # communicate() returns when nobody holds the pipe any more: a rank left running would hang it.
    out, _ = job.communicate(timeout=30)
    assert out.splitlines()[-1] == f"{-signal.SIGKILL} None"


def test_a_clean_job_may_leave_a_daemon():
    job = start(
        f"""
        import subprocess, sys
        daemon = subprocess.Popen(
            [sys.executable, "-c", {RANK!r}],
            start_new_session=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        daemon.stdout.readline()
        print(daemon.pid, flush=True)
        """
    )
    out, _ = job.communicate(timeout=30)
    daemon, end = out.splitlines()
    assert end == "0 None"
    os.kill(int(daemon), signal.SIGKILL)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_passed_on(number):
    job = start(
        """
        import signal, sys
        wanted = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
        signal.pthread_sigmask(signal.SIG_BLOCK, wanted)
        print("up", flush=True)
        sys.exit(40 + signal.sigwait(wanted))
        """
    )
    assert job.stdout.readline() == "up\n"
    job.send_signal(number)
    out, _ = job.communicate(timeout=30)
    assert out == f"{40 + number} {int(number)}\n"


def test_a_second_signal_does_not_wait():
    job = start(
        """
        import signal
        signal.signal(signal.SIGINT, lambda *_: print("first", flush=True))
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print("up", flush=True)
        while True:
            signal.pause()
        """
    )
    assert job.stdout.readline() == "up\n"
    job.send_signal(signal.SIGINT)
    assert job.stdout.readline() == "first\n"
    job.send_signal(signal.SIGINT)
    out, _ = job.communicate(timeout=30)
    assert out == f"{-signal.SIGKILL} {int(signal.SIGINT)}\n"


def test_a_job_that_does_not_hear_an_interrupt_is_terminated():
    program = DRIVER.replace(
        "end = run_job",
        "import simcoll.launch.supervisor; simcoll.launch.supervisor.PATIENCE_SECONDS = 0.1\nend = run_job",
    )
    deaf = """
    import signal
    signal.signal(signal.SIGINT, lambda *_: None)
    print("up", flush=True)
    while True:
        signal.pause()
    """
    job = subprocess.Popen(
        [sys.executable, "-c", program, textwrap.dedent(deaf)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert job.stdout.readline() == "up\n"
    job.send_signal(signal.SIGINT)
    out, _ = job.communicate(timeout=30)
    assert out == f"{-signal.SIGTERM} {int(signal.SIGINT)}\n"


def test_what_was_ignored_stays_ignored():
    program = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n" + DRIVER
    launcher = "import os, signal; os.kill(os.getppid(), signal.SIGHUP); raise SystemExit(7)"
    ended = subprocess.run([sys.executable, "-c", program, launcher], capture_output=True, text=True, check=False)
    assert ended.stdout == "7 None\n"


def test_the_ranks_end_when_the_command_is_killed(tmp_path):
    pytest.importorskip("torch")
    script = tmp_path / "rank.py"
    script.write_text(RANK)
    program = """
import os, sys
from simcoll.launch.supervisor import run_job
told = [str(os.getpid()), sys.argv[1], "off", ".", "--standalone", "--nproc-per-node=2", sys.argv[2]]
run_job([sys.executable, "-m", "simcoll.launch.launcher_process", *told], os.environ)
"""
    command = [sys.executable, "-c", program, str(tmp_path / "launch.json"), str(script)]
    job = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert [job.stdout.readline() for _ in range(2)] == ["up\n", "up\n"]
    job.kill()
    out, _ = job.communicate(timeout=60)
    assert (out, job.returncode) == ("", -signal.SIGKILL)


@pytest.mark.slow
def test_no_rank_starts_where_the_command_was_killed_before():
    pytest.importorskip("torch")
    orphan = ["simcoll.launch.launcher_process", "1", "launch.json", "off", ".", "--no-python", "echo", "started"]
    ended = subprocess.run([sys.executable, "-m", *orphan], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (1, "")


@pytest.mark.slow
def test_an_interrupt_while_torch_is_imported_leaves_no_traceback(tmp_path):
    """A torch in its place waits where the real one would still be importing."""
    (tmp_path / "torch.py").write_text("import signal; print('importing', flush=True); signal.pause()")
    command = [sys.executable, "-m", "simcoll.launch.launcher_process", str(os.getpid()), "launch.json", "off", "."]
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    job = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    assert job.stdout.readline() == "importing\n"
    job.send_signal(signal.SIGINT)
    assert (job.communicate(timeout=30)[1], job.returncode) == ("", -signal.SIGINT)
