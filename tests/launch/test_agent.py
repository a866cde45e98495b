"""What the launcher writes down of the ends of its ranks, however the looks of agent and watchers fall."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from simcoll.blackbox.accounts import LaunchedRank, read_launch

launcher: Any = pytest.importorskip("simcoll.launch.agent")


def ended_process(*, killed: bool) -> subprocess.Popen[bytes]:
    """A process that has ended and that somebody else than the watcher has reaped."""
    program = "import signal; signal.pause()" if killed else ""
    process = subprocess.Popen([sys.executable, "-c", program])
    if killed:
        process.terminate()
    process.wait()
    return process


def rank(process: subprocess.Popen[bytes], local_rank: int = 0) -> dict[str, Any]:
    return {"rank": local_rank, "local_rank": local_rank, "pid": process.pid}


def account(ledger: Any, path: Path) -> list[LaunchedRank]:
    ledger.settle()
    return list(read_launch(path).ranks)


@pytest.mark.parametrize("reaped", [True, False])
@pytest.mark.parametrize("by_the_agent", [True, False])
def test_who_ended_a_rank_does_not_depend_on_when_its_watcher_looks(
    by_the_agent: bool, reaped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel's kill for want of memory is the rank's own end, also where the agent saw it before the watcher."""
    monkeypatch.setattr(launcher.Ledger, "_watch", lambda ledger, entry: None)
    process = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])

    def end() -> None:
        process.kill()
        if reaped:
            process.wait()
        else:
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)

    ledger = launcher.Ledger(tmp_path / "launch.json")
    ledger.start([rank(process)])
    close = end if by_the_agent else lambda: None
    context = SimpleNamespace(close=close, subprocess_handlers={0: SimpleNamespace(proc=process)})
    launcher._observe_close(context, ledger)
    if not by_the_agent:
        end()
    context.close()
    process.wait()
    ledger.reaped(launcher._exit_codes(context))
    [found] = account(ledger, tmp_path / "launch.json")
    assert (found.exit_code, found.stopped) == (-signal.SIGKILL, by_the_agent)


def test_a_context_of_forked_ranks_knows_its_exit_codes() -> None:
    context = SimpleNamespace(
        _pc=SimpleNamespace(processes=[SimpleNamespace(exitcode=3), SimpleNamespace(exitcode=None)])
    )
    assert launcher._exit_codes(context) == {0: 3}


def test_nobody_returned_zero_in_an_interrupted_job_that_was_not_seen_to(tmp_path: Path) -> None:
    ledger = launcher.Ledger(tmp_path / "launch.json")
    ledger.start([rank(ended_process(killed=True))])
    ledger.closing({})
    ledger.say(interrupted="SIGTERM")
    [found] = account(ledger, tmp_path / "launch.json")
    assert (found.exit_code, found.stopped) == (-signal.SIGTERM, True)


def test_a_rank_that_torch_does_not_name_returned_zero(tmp_path: Path) -> None:
    ledger = launcher.Ledger(tmp_path / "launch.json")
    ledger.start([rank(ended_process(killed=False))])
    [found] = account(ledger, tmp_path / "launch.json")
    assert (found.exit_code, found.stopped) == (0, False)


def test_a_free_port_is_found_whatever_the_masters_address_is() -> None:
    """An address behind which this host stands without having it, as with forwarded ports, is no reason to fail."""
    options = launcher._parser().parse_args(["--master-addr", "192.0.2.1", "train.py"])
    launcher._take_free_port(options)
    assert options.master_port
