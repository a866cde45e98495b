"""SIGUSR1 gives stacks, also of a process that holds the GIL, and belongs to any program that wants it."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from simcoll.blackbox.stacks import ask_for_dump, catches, read_stacks, remove_unused

pytestmark = pytest.mark.slow

HEAD = """
import faulthandler, os, re, signal, sys, threading
from pathlib import Path
from simcoll.blackbox.stacks import answer_into, answer_no_more, answer_signal
path = Path("rank00000.stacks.txt").absolute()
def up():
    print("up", flush=True)
"""
WAIT = """
def hang():
    up()
    threading.Event().wait()
hang()
"""
ANSWER = "answer_signal(); answer_into(path, 'simcoll: rank 0\\n')\n"


@contextmanager
def process(body: str, folder: Path, wait: str = WAIT) -> Iterator[subprocess.Popen[str]]:
    script = folder / "train.py"
    script.write_text(HEAD + textwrap.dedent(body) + wait)
    job = subprocess.Popen(
        [sys.executable, str(script)], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert job.stdout is not None
        assert job.stdout.readline() == "up\n"
        yield job
    finally:
        job.kill()
        job.communicate()


def soon(holds: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 20
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.02)
    return holds()


def functions(folder: Path) -> list[str]:
    threads = read_stacks(folder / "rank00000.stacks.txt")
    return [frame.function for thread in threads for frame in thread.frames]


def test_stacks_are_added_each_time(tmp_path: Path) -> None:
    with process(ANSWER, tmp_path) as job:
        job.send_signal(signal.SIGUSR1)
        assert soon(lambda: functions(tmp_path).count("hang") == 1)
        job.send_signal(signal.SIGUSR1)
        assert soon(lambda: functions(tmp_path).count("hang") == 2)
        assert job.poll() is None
    assert (tmp_path / "rank00000.stacks.txt").read_text().startswith("simcoll: rank 0\n")


def test_a_rank_that_holds_the_gil_answers(tmp_path: Path) -> None:
    wait = '\ndef hang():\n    up()\n    re.match(r"(a+)+$", "a" * 40 + "b")\nhang()\n'
    with process(ANSWER, tmp_path, wait) as job:
        job.send_signal(signal.SIGUSR1)
        assert soon(lambda: "hang" in functions(tmp_path))


def test_before_it_is_a_rank_a_process_writes_to_stderr(tmp_path: Path) -> None:
    with process("answer_signal()", tmp_path) as job:
        job.send_signal(signal.SIGUSR1)
        assert job.stderr is not None
        assert "most recent call first" in job.stderr.readline()
        assert 'train.py"' in job.stderr.readline() + job.stderr.readline() + job.stderr.readline()
        assert job.poll() is None


def test_the_signal_looks_free_to_the_program(tmp_path: Path) -> None:
    with process(ANSWER + "assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL", tmp_path) as job:
        assert job.poll() is None


USES = {
    # Not by print, which refuses to be entered while the program is still printing that it is up.
    "a handler of Python's": "signal.signal(signal.SIGUSR1, lambda *_: os.write(1, b'mine\\n'))",
    "faulthandler": "faulthandler.register(signal.SIGUSR1, file=sys.stdout, all_threads=False)",
}
ORDERS = {
    "before": "{use}; answer_signal(); answer_into(path, '')",
    "after": "answer_signal(); answer_into(path, ''); {use}",
    "between": "answer_signal(); {use}; answer_signal(); answer_into(path, '')",
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("use", USES)
def test_the_program_s_own_use_wins(tmp_path: Path, order: str, use: str) -> None:
    with process(ORDERS[order].format(use=USES[use]), tmp_path) as job:
        job.send_signal(signal.SIGUSR1)
        assert job.stdout is not None
        assert ("mine" if "Python" in use else "most recent call first") in job.stdout.readline()
        assert functions(tmp_path) == []
        assert job.poll() is None


def test_a_signal_that_is_ignored_stays_ignored(tmp_path: Path) -> None:
    with process("signal.signal(signal.SIGUSR1, signal.SIG_IGN); " + ANSWER, tmp_path) as job:
        job.send_signal(signal.SIGUSR1)
        assert job.poll() is None
        assert not catches(job.pid, signal.SIGUSR1)


def test_a_forked_child_leaves_the_file_of_its_parent_alone(tmp_path: Path) -> None:
    body = (
        ANSWER
        + """
child = os.fork()
if child == 0:
    os.kill(os.getpid(), signal.SIGUSR1)
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
"""
    )
    with process(body, tmp_path):
        assert functions(tmp_path) == []


def test_a_file_of_an_earlier_job_is_replaced_and_an_unused_one_removed(tmp_path: Path) -> None:
    path = tmp_path / "rank00000.stacks.txt"
    path.write_text("old")
    with process(ANSWER + "assert path.read_text() == 'simcoll: rank 0\\n'", tmp_path):
        pass
    with process(ANSWER + "answer_no_more(); assert not path.exists()", tmp_path) as job:
        job.send_signal(signal.SIGUSR1)
        assert job.poll() is None


def test_only_a_file_without_stacks_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "stacks"
    path.write_text("heading\nThread 0x1\n")
    remove_unused(path)
    assert path.exists()
    path.write_text("heading\n")
    remove_unused(path)
    remove_unused(path)
    assert not path.exists()


def test_who_would_die_of_it_is_not_asked() -> None:
    with subprocess.Popen(["sleep", "60"]) as other:
        try:
            ask_for_dump(other.pid)
            assert other.poll() is None
        finally:
            other.kill()
    ask_for_dump(other.pid)
