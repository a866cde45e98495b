"""A process that is told to end while it forks ends: no function that runs at a fork takes the exception."""

from __future__ import annotations

import os
import subprocess
import sys
from textwrap import dedent

import pytest

pytest.importorskip("torch")

PROGRAM = """
    import os, signal, sys
    from simcoll.launch.fork import fork

    def told(number, frame):
        raise SystemExit(7)

    signal.signal(signal.SIGTERM, told)
    os.register_at_fork(**{sys.argv[1]: lambda: os.kill(os.getpid(), signal.SIGTERM)})
    if fork() == 0:
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.wait()[1]))
"""


@pytest.mark.parametrize(
    ("where", "code", "out"), [("before", 7, ""), ("after_in_parent", 7, ""), ("after_in_child", 0, "7\n")]
)
def test_a_signal_that_comes_while_a_process_forks_is_not_lost(where: str, code: int, out: str) -> None:
    told = subprocess.run(
        [sys.executable, "-c", dedent(PROGRAM), where], capture_output=True, text=True, check=False, env={**os.environ}
    )
    assert (told.returncode, told.stdout, told.stderr) == (code, out, "")
