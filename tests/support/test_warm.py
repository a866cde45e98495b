"""A command that is a fork of the warm process is to its program, and to who starts it, what a new interpreter is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.warm import COLD_VARIABLE, program_of

pytest.importorskip("torch")
pytestmark = pytest.mark.slow

PROGRAM = """
import os, sys
print(os.getpid(), os.getppid(), sys.argv[1:], __name__, os.getcwd(), os.environ["GIVEN"], "torch" in sys.modules)
import torch
print(torch.ones(2).sum().item(), sys.stdin.read(), file=sys.stderr)
sys.exit(7)
"""


@pytest.mark.skipif(COLD_VARIABLE in os.environ, reason="every command is started cold")
def test_it_is_a_child_with_its_own_everything(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    environment = os.environ | {"GIVEN": "value"}
    command = [sys.executable, "program.py", "a", "b c"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=tmp_path, env=environment, **pipes) as process:
        out, err = process.communicate("typed", timeout=60)
    expected = f"{process.pid} {os.getpid()} ['a', 'b c'] __main__ {tmp_path} value False\n"
    assert (process.returncode, out, err) == (7, expected, "2.0 typed\n")


def test_a_signal_reaches_it_and_is_its_end(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("import signal\nprint('up', flush=True)\nsignal.pause()")
    with subprocess.Popen([sys.executable, "program.py"], cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == -signal.SIGTERM


ENDS = {
    "a code": "import sys\nprint('last', end='')\nsys.exit(300)",
    "a text": "import sys\nsys.exit('why')",
    "an error": "import sys\nsys.excepthook = lambda *_: print('hook')\n1 / 0",
    "an interrupt": "import sys\nsys.excepthook = lambda *_: None\nraise KeyboardInterrupt",
    "a thread": "import threading\nthreading.Thread(target=print, args=['thread']).start()",
    "a stream that is closed": "import os\nprint('x')\nos.close(1)",
    "what is destroyed": "class Last:\n    def __del__(self, say=print):\n        say('gone')\nkept = Last()",
}


@pytest.mark.parametrize("program", ENDS.values(), ids=ENDS.keys())
def test_it_ends_as_an_interpreter_does(program: str, tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(program)
    assert program_of([sys.executable, "-E", str(path)], str(tmp_path)) is None
    warm, cold = (
        subprocess.run([sys.executable, *options, path], capture_output=True, text=True, timeout=60, check=False)
        for options in ((), ("-E",))
    )
    assert (warm.returncode, warm.stdout) == (cold.returncode, cold.stdout)
    assert warm.stderr.splitlines()[-1:] == cold.stderr.splitlines()[-1:]


def test_a_command_in_another_network_is_a_fork(tmp_path: Path) -> None:
    (tmp_path / "program.py").touch()
    found = program_of(["/sbin/ip", "netns", "exec", "host", sys.executable, "program.py", "a"], str(tmp_path))
    assert found is not None
    assert (found["network"], found["script"], found["arguments"]) == ("host", "program.py", ["a"])
    assert program_of(["/sbin/ip", "netns", "exec", "host", "ls"], str(tmp_path)) is None


@pytest.mark.parametrize("words", [["-c", "pass"], ["-I", "x.py"], ["-m", "pip"], ["missing.py"]])
def test_what_stays_cold(words: list[str], tmp_path: Path) -> None:
    assert program_of([sys.executable, *words], str(tmp_path)) is None


def test_a_module_may_be_named_in_the_same_word(tmp_path: Path) -> None:
    words = ["--version"]
    assert program_of([sys.executable, "-mpytest", *words], str(tmp_path)) == program_of(
        [sys.executable, "-m", "pytest", *words], str(tmp_path)
    )


def test_a_torch_in_the_programs_folder_is_its_own(tmp_path: Path) -> None:
    for name in ("program.py", "torch.py"):
        (tmp_path / name).touch()
    assert program_of([sys.executable, "program.py"], str(tmp_path)) is None
