"""What /proc shows of processes: real ones of this host."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

from simcoll.core.processes import Processes


def test_a_process_is_gone_once_it_has_ended_or_another_has_its_number() -> None:
    processes, pid = Processes(), os.getpid()
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    processes.look({pid: time.monotonic_ns(), child.pid: 0})
    assert not processes.gone(processes.host, pid)
    assert processes.gone(processes.host, child.pid)
    assert not processes.gone("elsewhere", child.pid)
    child.wait()
    processes.look({pid: 1})  # at boot, this process had not started yet
    assert processes.gone(processes.host, pid)


def test_a_process_sleeps_computes_or_is_stopped() -> None:
    """A process computes for as long as it takes to be seen to, then sleeps, and is then stopped."""
    program = "import sys\nwhile sys.stdin.readline() != 'sleep\\n': [None for _ in range(10**6)]\nsys.stdin.readline()"
    command = [sys.executable, "-c", program]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, text=True)
    assert child.stdin is not None
    processes, host = Processes(), Processes().host
    child.stdin.write("go\n" * 30)
    child.stdin.flush()

    def seen(what: str) -> bool:
        processes.look({child.pid: 0})
        return bool(getattr(processes, what)(host, child.pid))

    def until(what: str) -> None:
        deadline = time.monotonic() + 60
        while not seen(what):
            assert time.monotonic() < deadline
            time.sleep(0.05)

    try:
        until("busy")
        child.stdin.write("sleep\n")
        child.stdin.flush()
        until("asleep")
        child.send_signal(signal.SIGSTOP)
        until("stopped")
        assert not seen("asleep")
    finally:
        child.kill()
        child.communicate()
