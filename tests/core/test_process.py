"""Children are reaped in time, and a process that adopts orphans ends them all but those that it spares."""

import gc
import os
import signal
import subprocess
import sys
import time

import pytest

from simcoll.core.process import STOPPED, children, kill, rare_collections, reap, stat_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="children are found in /proc")

SLEEPS = "import time; time.sleep(600)"


def forked(code: str) -> int:
    return os.spawnv(os.P_NOWAIT, sys.executable, [sys.executable, "-S", "-c", code])


def test_a_child_that_ends_in_time_keeps_its_exit_code() -> None:
    assert reap(forked("import os; os._exit(7)"), 60) == 7


@pytest.mark.parametrize("seconds", [0.0, 0.05])
def test_a_child_that_does_not_end_in_time_is_killed(seconds: float) -> None:
    begin = time.monotonic()
    assert reap(forked(SLEEPS), seconds) == -signal.SIGKILL
    assert time.monotonic() - begin >= seconds


def test_a_process_is_a_child_until_it_is_reaped() -> None:
    pid = forked(SLEEPS)
    assert pid in children()
    assert (stat := stat_of(pid)) is not None
    assert stat.parent == os.getpid()
    kill(pid)
    assert reap(pid, 60) == -signal.SIGKILL
    assert pid not in children()
    assert stat_of(pid) is None
    kill(pid)


def test_a_process_that_a_signal_holds_is_stopped() -> None:
    pid = forked(SLEEPS)
    assert (stat := stat_of(pid)) is not None
    assert stat.state not in STOPPED
    os.kill(pid, signal.SIGSTOP)
    os.waitpid(pid, os.WUNTRACED)
    assert (stat := stat_of(pid)) is not None
    assert stat.state in STOPPED
    assert reap(pid) == -signal.SIGKILL


def test_orphans_are_killed_and_spared_children_are_not() -> None:
    # Three children in sessions of their own, and a child of each: all hold stdout open, so that run() waits for them.
    program = f"""
import os, subprocess, sys
from simcoll.core.process import adopt_orphans, children, kill, kill_children, reap
adopt_orphans()
spared = subprocess.Popen([sys.executable, "-S", "-c", {SLEEPS!r}], stdout=subprocess.DEVNULL)
before = children()
read, write = os.pipe()
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        subprocess.Popen([sys.executable, "-S", "-c", {SLEEPS!r}])
        os.write(write, b"x")
        os.execv(sys.executable, [sys.executable, "-S", "-c", {SLEEPS!r}])
for _ in range(3):
    os.read(read, 1)
kill_children(before)
print(children() == before == {{spared.pid}}, spared.poll(), flush=True)
kill(spared.pid)
"""
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, timeout=60, check=True)
    assert done.stdout == "True None\n"


def test_python_looks_for_garbage_rarely_while_records_are_read_and_as_before_afterwards() -> None:
    before, looks = gc.get_threshold(), list[str]()

    def looked(phase: str, _: object) -> None:
        looks.extend([phase] * (phase == "start"))

    gc.callbacks.append(looked)
    try:
        with rare_collections():
            kept = [list[int]() for _ in range(100_000)]
    finally:
        gc.callbacks.remove(looked)
    assert len(looks) <= 1 < len(kept)
    assert gc.get_threshold() == before


def test_a_collector_that_is_turned_off_by_its_threshold_stays_so() -> None:
    before = gc.get_threshold()
    gc.set_threshold(0)
    try:
        with rare_collections():
            assert gc.get_threshold()[0] == 0
    finally:
        gc.set_threshold(*before)
