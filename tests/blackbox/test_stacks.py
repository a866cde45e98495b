"""Stacks asked for from outside, from processes that offer them, also with the GIL held."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")


from simcoll.blackbox import stacks as stacks_module
from simcoll.blackbox.stacks import Stack, ask, offer_stacks, read_stacks
from simcoll.core.record import Source
from simcoll.core.source_roots import own_roots, torch_folder
from simcoll.proof import store
from tests.support.native import parts

OFFER = """
import sys
from pathlib import Path
from simcoll.blackbox.stacks import offer_stacks
offer_stacks(Path(sys.argv[1]))
"""


@contextmanager
def process(body: str, folder: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    script, path = folder / "train.py", folder / "rank00000.stack"
    script.write_text(OFFER + 'print("up", flush=True)\n' + textwrap.dedent(body))
    job = subprocess.Popen([sys.executable, str(script), str(path)], stdout=subprocess.PIPE, text=True)
    try:
        assert job.stdout is not None
        assert job.stdout.readline() == "up\n"
        yield job, path
    finally:
        job.kill()
        job.communicate()


def stacks(pid: int, path: Path, wanted: str) -> list[Stack]:
    """Ask until the main thread has come to the function that is wanted."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        ask(pid)
        time.sleep(0.05)
        found = read_stacks(path)
        if found and any(frame.function == wanted for frame in found[-1].frames):
            return found
    raise AssertionError(path.read_text())


@pytest.mark.slow
def test_the_main_thread_comes_last_with_its_line(tmp_path: Path) -> None:
    body = """
    import threading
    def helper():
        threading.Event().wait()
    threading.Thread(target=helper, daemon=True).start()
    def train():
        threading.Event().wait()
    train()
    """
    with process(body, tmp_path) as (job, path):
        threads = stacks(job.pid, path, "train")
        assert job.poll() is None
    assert any(frame.function == "helper" for thread in threads[:-1] for frame in thread.frames)
    place = threads[-1].place()
    assert place is not None
    assert (Path(place.file).name, place.function, place.code) == ("train.py", "train", "threading.Event().wait()")


@pytest.mark.slow
def test_a_process_that_holds_the_gil_answers(tmp_path: Path) -> None:
    body = """
    import re
    def hang():
        re.match(r"(a+)+$", "a" * 40 + "b")
    hang()
    """
    with process(body, tmp_path) as (job, path):
        place = stacks(job.pid, path, "hang")[-1].place()
    assert place is not None
    assert place.function == "hang"


@pytest.mark.slow
def test_who_connects_is_told_from_who_waits(tmp_path: Path) -> None:
    body = """
    import functools, threading, time
    from types import SimpleNamespace
    from simcoll.proof.store import own_connection
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    own_connection(SimpleNamespace(clone=functools.partial(time.sleep, 60)))
    """
    with process(body, tmp_path) as (job, path):
        threads = stacks(job.pid, path, "own_connection")
    assert threads[-1].connects()
    assert not threads[-2].connects()


def test_a_function_of_the_programs_connects_nothing() -> None:
    connecting = Source(store.__file__, 1, "own_connection", "return store.clone()")
    assert Stack((connecting, Source("train.py", 1, "step"))).connects()
    assert not Stack((Source("train.py", 1, "own_connection"),)).connects()


def test_who_saves_a_file_is_at_work() -> None:
    file = os.path.join(torch_folder(), "serialization.py")
    saving = Stack((Source(file, 1, "write"), Source("train.py", 1, "step", "torch.save(x, path)")))
    assert (saving.waits_in_torch(), saving.works_for_user()) == (False, True)
    backward = Stack((Source(os.path.join(torch_folder(), "autograd", "graph.py"), 1, "run"),))
    assert backward.waits_in_torch()


def test_frames_are_told_by_the_folders_of_their_own_process() -> None:
    """A launcher from another folder than the ranks': simcoll's frames there are not the user's."""
    theirs = replace(own_roots(), simcoll=("/theirs/simcoll/",))
    waiting = Source("/theirs/simcoll/wrapper/work.py", 9, "wait", "done.acquire()")
    frames = waiting, Source("/job/train.py", 5, "step", "x = f()"), Source("/job/train.py", 9, "main", "step()")
    own, other = Stack(frames, theirs), Stack(frames)
    assert (own.waits_in_torch(), other.waits_in_torch()) == (True, False)
    assert (own.place(), other.place()) == (frames[1], waiting)
    place = own.place()
    assert place is not None
    assert place.callers == frames[2:]


@pytest.mark.slow
def test_a_sleep_in_c_is_not_cut_short(tmp_path: Path) -> None:
    body = """
    import ctypes, threading
    def helper():
        threading.Event().wait()
    threading.Thread(target=helper, daemon=True).start()
    def hang():
        ctypes.PyDLL(None).sleep(600)
    hang()
    raise SystemExit("the sleep was cut short")
    """
    with process(body, tmp_path) as (job, path):
        assert stacks(job.pid, path, "hang")[-1].waits_in_torch() is False
        with pytest.raises(subprocess.TimeoutExpired):
            job.wait(0.2)


def test_a_signal_that_the_program_uses_is_left_alone(tmp_path: Path) -> None:
    code = (
        "import signal, sys; from pathlib import Path; from simcoll.blackbox.stacks import offer_stacks; "
        "signal.signal(signal.SIGRTMIN + 9, lambda *_: None); offer_stacks(Path(sys.argv[1]))"
    )
    path = tmp_path / "rank00000.stack"
    subprocess.run([sys.executable, "-c", code, str(path)], check=True)
    assert not path.exists()


def test_a_folder_that_is_not_there_is_no_failure(tmp_path: Path) -> None:
    offer_stacks(tmp_path / "absent" / "rank00000.stack")


WITHDRAW = """
import os, sys
from pathlib import Path
from simcoll.blackbox import stacks
own, launchers, taken = (Path(sys.argv[1]) / f"rank0000{rank}.stack" for rank in range(3))
stacks.offer_recorded_stacks(own)
os.environ.update(SIMCOLL_STACKS=sys.argv[1], RANK="1")
stacks.offer_rank_stacks()
stacks.offer_recorded_stacks(launchers)
stacks.offer_recorded_stacks(taken)
taken.unlink()
taken.write_text("another process's")
if (child := os.fork()) == 0:
    stacks.withdraw_stacks()
    os._exit(not own.exists())
assert os.waitpid(child, 0)[1] == 0
stacks.withdraw_stacks()
stacks.withdraw_stacks()
"""


def test_a_process_that_ends_takes_its_own_file_with_it(tmp_path: Path) -> None:
    """And neither the launcher's, whose monitor counts them, nor another process's."""
    subprocess.run([sys.executable, "-c", WITHDRAW, str(tmp_path)], check=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rank00001.stack", "rank00002.stack"]


def test_a_process_that_has_closed_its_files_ends_without_an_error(tmp_path: Path) -> None:
    """As one that runs pytest does, before ``atexit``."""
    closed = """
import sys
from pathlib import Path
from simcoll.blackbox import stacks
stacks.offer_recorded_stacks(Path(sys.argv[1]))
for file in stacks._open.values():
    file.close()
stacks.withdraw_stacks()
"""
    subprocess.run([sys.executable, "-c", closed, str(tmp_path / "rank00000.stack")], check=True)


FAULTS = """
import ctypes, os, signal
from simcoll.core.native import native
libc = ctypes.CDLL(None)
# As strlen of address 10 faults, so does faulthandler where a thread has given its frames back meanwhile.
libc.signal(signal.SIGUSR1, ctypes.cast(libc.strlen, ctypes.c_void_p))
native("simcoll.blackbox._stacks").guard(signal.SIGUSR1, 1, "lost\\n")
os.kill(os.getpid(), signal.SIGUSR1)
os.kill(os.getpid(), signal.SIGUSR1)
libc.strlen(10)
"""


def test_a_fault_while_stacks_are_written_ends_no_process() -> None:
    """And one of the program's own does, before and after."""
    with parts("compiled"):
        job = subprocess.run([sys.executable, "-c", FAULTS], stdout=subprocess.PIPE, text=True)
    assert (job.returncode, job.stdout) == (-signal.SIGSEGV, "lost\n" * 2)


def test_what_was_written_before_a_fault_is_no_stack(tmp_path: Path) -> None:
    path = tmp_path / "rank00000.stack"
    path.write_text(f'Thread 0x1 (most recent call first):\n  File "x.py", line 1 in f\n{stacks_module._LOST}\n')
    assert read_stacks(path) == []


@pytest.mark.parametrize("text", ["", "rubbish", '  File "x", line 1 in f\n', "Thread 0x1 (most recent call first):\n"])
def test_what_is_no_stack_gives_no_frames(tmp_path: Path, text: str) -> None:
    path = tmp_path / "rank00000.stack"
    path.write_text(text)
    assert all(not stack.frames for stack in read_stacks(path))
    assert all(stack.place() is None and not stack.waits_in_torch() for stack in read_stacks(path))
    assert read_stacks(tmp_path / "none") == []


def test_a_process_without_a_handler_is_not_asked() -> None:
    with subprocess.Popen(["sleep", "60"]) as other:
        try:
            ask(other.pid)
            assert other.poll() is None
            with pytest.raises(subprocess.TimeoutExpired):
                other.wait(0.05)
        finally:
            other.kill()
