"""What tests share: an environment without leftovers, real ranks, a skip with its reason where a GPU is needed."""

from __future__ import annotations

import ast
import atexit
import contextlib
import faulthandler
import functools
import gc
import importlib.util
import itertools
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from tests.support import warm
from tests.support.loopback_names import name_loopback
from tests.support.order import place_of
from tests.support.seeds import ALL

LEFTOVERS = ("SIMCOLL_MODE", "SIMCOLL_OUT", "TORCH_DISTRIBUTED_DEBUG", "FORCE_COLOR", "NO_COLOR", "COLUMNS")
LAUNCHER = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "GROUP_RANK")

# At import, and not in a fixture: torch reads the mode when it is first imported, which collecting a test may do.
for _name in LEFTOVERS + LAUNCHER:
    os.environ.pop(_name, None)

# A test's ranks are many processes on few cores: with a pool of threads each they spend their time waiting for one.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Programs with bugs leave calls behind, of which torch's C++ tells when the process ends, after pytest's last word.
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")


# Every machine is slow at times, and what is asked of a test is its result.
hypothesis.settings.register_profile("simcoll", deadline=None)
hypothesis.settings.load_profile("simcoll")

# Before any process is started: all of them have the names.
name_loopback()

# Commands and ranks that tests start are forks of a process that has torch; tests marked `cold` go without.
warm.install()

_parse = ast.parse


@functools.wraps(_parse)
def _parsed_again(*args: Any, **kwargs: Any) -> Any:
    """Python 3.11 counts the depth of a tree for all threads in one place (https://github.com/python/cpython/issues/106905):
    where another thread parses as pytest tells of a failure, the whole run would end.
    """
    for _ in range(3):
        with contextlib.suppress(SystemError):
            return _parse(*args, **kwargs)
    return _parse(*args, **kwargs)


ast.parse = _parsed_again

# Modules and tests that are collected stay: to look through them for garbage is a third of what collecting costs.
gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of several workers' tests those come first that take longest; ``--no-loadscope-reorder`` keeps this order.

    Tests marked ``nightly`` are left out, except where ``-m`` names the mark or ``SIMCOLL_SEEDS=all`` asks for all.
    """
    if not ALL and "nightly" not in config.option.markexpr:
        at_night = {item for item in items if item.get_closest_marker("nightly") is not None}
        config.hook.pytest_deselected(items=list(at_night))
        items[:] = [item for item in items if item not in at_night]
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: place_of(item.nodeid))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test marked ``gpu`` where torch finds none, with the reason; the commands of one marked ``cold`` are."""
    warm.WARM.off = item.get_closest_marker("cold") is not None or importlib.util.find_spec("torch") is None
    if item.get_closest_marker("gpu") is not None and (reason := _why_no_gpu()):
        pytest.skip(reason)


@functools.lru_cache(maxsize=1)
def _why_no_gpu() -> str:
    """Asked in another process: this one forks ranks, and must not touch the GPU."""
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed"
    import torch

    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built without CUDA"
    from benchmarks.gpu.machine import this_machine

    return this_machine().reason


def pytest_unconfigure() -> None:
    """Close the files for stacks that recorders in this process keep: pytest is to have the last word.

    Threads that change the filters of warnings beside each other may leave some by which such a file is an error.
    """
    stacks = sys.modules.get("simcoll.blackbox.stacks")
    for file in stacks._open.values() if stacks is not None else ():
        faulthandler.unregister(stacks._signal_number())
        file.close()


@pytest.fixture(autouse=True)
def _same_environment() -> Iterator[None]:
    """What a test, or PyTorch's harness in it, does to the environment is no business of the next one."""
    before = dict(os.environ)
    yield
    if os.environ != before:
        os.environ.clear()
        os.environ.update(before)


@pytest.fixture(scope="session")
def store_port() -> Iterator[int]:
    """The port of a store that outlives every rank, as that of torchrun's agent does; forks are cheap from now on."""
    import torch.distributed

    assert torch.distributed.is_available()
    gc.collect()
    gc.freeze()
    warm.collapse_memory()
    ours, theirs = multiprocessing.Pipe()
    pid = os.fork()
    if pid == 0:
        ours.close()
        _hold_store(theirs)
    theirs.close()
    yield ours.recv()
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def _hold_store(pipe: Connection) -> None:
    """Ends with its parent, whose end of the pipe then closes."""
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    pipe.send(store.port)
    with contextlib.suppress(EOFError):
        pipe.recv()
    os._exit(0)


@dataclass(frozen=True)
class Ended:
    """How a rank ended: what its program returned (None if it raised), its exit code, what it printed."""

    answer: Any
    exit_code: int
    output: str


class Ranks:
    """Real ranks on real Gloo, forked from this process, so that torch is imported once.

    A rank ends as an interpreter does: its exception goes to ``sys.excepthook``, its threads are joined, and what it
    registered with ``atexit`` is called.
    """

    LIMIT_SECONDS = 40
    # The store is one for the whole session, so that no name may come again.
    _runs = itertools.count()

    def __init__(self, folder: Path, port: int) -> None:
        self.boxes = folder / "boxes"
        self._folder = folder
        self.port = port

    def run(
        self,
        program: Callable[[int], object],
        size: int = 2,
        *,
        mode: str | None = "detail",
        timeout: float = 20.0,
        backend: str | None = "gloo",
        **environment: str,
    ) -> list[Ended]:
        """Run ``program(rank)`` on each rank, in a default group unless ``backend`` is None; no mode: no simcoll."""
        name = f"run{next(self._runs)}"
        environment = {"RANK": "", "WORLD_SIZE": str(size), "OUTPUT": "", **environment}
        started = []
        for rank in range(size):
            environment |= {"RANK": str(rank), "OUTPUT": str(self._folder / f"{name}-{rank}.txt")}
            read, write = multiprocessing.Pipe(duplex=False)
            pid = os.fork()
            if pid == 0:
                self._be_rank(program, write, environment, mode, lambda: self._join(name, backend, timeout))
            write.close()
            started.append((pid, read, Path(environment["OUTPUT"])))
        return [self._ended(*rank) for rank in started]

    def __call__(self, program: Callable[[int], object], size: int = 2, **options: Any) -> list[Any]:
        """Run ``program(rank)`` on each rank, as :meth:`run`; what they return. Every rank must end well."""
        ended = self.run(program, size, **options)
        assert [rank.exit_code for rank in ended] == [0] * size, "\n".join(rank.output for rank in ended)
        return [rank.answer for rank in ended]

    def box(self, rank: int) -> Any:
        """A rank's black box, read."""
        from simcoll.blackbox import read_black_box

        return read_black_box(self.boxes / f"rank{rank:05d}.simcoll")

    def records(self, rank: int) -> list[Any]:
        """The records of a rank's black box."""
        box = self.box(rank)
        return [box.record(index) for index in range(len(box.slots))]

    @staticmethod
    def error_of(call: Callable[[], object]) -> Exception | None:
        """What a call raises, or None."""
        try:
            call()
        except Exception as error:
            return error
        return None

    def store(self, name: str) -> Any:
        """The store, under a prefix."""
        from torch.distributed import PrefixStore, TCPStore

        return PrefixStore(name, TCPStore("127.0.0.1", self.port, is_master=False))

    def _join(self, name: str, backend: str | None, timeout: float) -> None:
        import torch.distributed as dist

        if backend is not None:
            rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
            limit = timedelta(seconds=timeout)
            dist.init_process_group(backend, store=self.store(name), rank=rank, world_size=size, timeout=limit)

    def _be_rank(
        self,
        program: Callable[[int], object],
        pipe: Connection,
        environment: dict[str, str],
        mode: str | None,
        join: Callable[[], None],
    ) -> None:
        code = 1
        try:
            self._begin(environment, mode)
            join()
            pipe.send(program(int(environment["RANK"])))
            code = 0
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            # What the interpreter does at its end, but for what pytest would do at its own.
            threading._shutdown()
            atexit._run_exitfuncs()
            sys.stderr.flush()
            os._exit(code)

    def _begin(self, environment: dict[str, str], mode: str | None) -> None:
        import torch.distributed as dist

        atexit._clear()
        warnings.simplefilter("default")
        os.environ.update(environment)
        output = os.open(environment["OUTPUT"], os.O_WRONLY | os.O_CREAT)
        for target in (1, 2):
            os.dup2(output, target)
        sys.stdout = sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
        sys.excepthook = sys.__excepthook__
        faulthandler.enable(sys.stderr)
        faulthandler.dump_traceback_later(self.LIMIT_SECONDS, exit=True, file=sys.stderr)
        dist.set_debug_level_from_env()
        if mode is not None:
            import simcoll

            simcoll.enable(mode, environment.get("SIMCOLL_OUT", self.boxes))

    @staticmethod
    def _ended(pid: int, pipe: Connection, output: Path) -> Ended:
        answer = None
        with contextlib.suppress(EOFError):
            answer = pipe.recv()
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        return Ended(answer, code, output.read_text(errors="replace"))


@pytest.fixture(autouse=True)
def reports_are_valid(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every report that a command prints or leaves in a test's folder is valid under the schema that is shipped."""
    from simcoll.cli import output
    from tests.support.documents import check_report, valid_report

    monkeypatch.setattr(output, "report_document", valid_report)
    folder: Path | None = request.getfixturevalue("tmp_path") if "tmp_path" in request.fixturenames else None
    yield
    for path in [] if folder is None else folder.rglob("report.json"):
        text = path.read_text(encoding="utf-8")
        if '"schema": "simcoll.report/1"' in text:
            check_report(json.loads(text))


@pytest.fixture
def ranks(tmp_path: Path, store_port: int) -> Ranks:
    """Runs a function on real Gloo ranks; see :class:`Ranks`."""
    return Ranks(tmp_path, store_port)


@contextlib.contextmanager
def hosts(count: int) -> Iterator[list[str]]:
    """Network namespaces on one bridge; the loopback address and Unix sockets are each one's own.

    Each has an interface ``scwire`` with the address 10.99.0.1, 10.99.0.2, ...; the first holds the bridge.
    """
    tool = shutil.which("ip") or ""
    names = [f"simcoll{os.getpid()}n{number}" for number in range(count)]

    def ip(*arguments: str) -> None:
        subprocess.run([tool, *arguments], check=True, capture_output=True, text=True)

    if not tool:
        pytest.skip("no ip command (iproute2)")
    try:
        for name in names:
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        first = names[0]
        if count == 2:
            ip("link", "add", "scwire", "netns", first, "type", "veth", "peer", "name", "scwire", "netns", names[1])
        else:
            ip("-n", first, "link", "add", "scwire", "type", "bridge")
            for number, name in enumerate(names[1:], 1):
                ip("link", "add", f"port{number}", "netns", first, "type", "veth", "peer", "scwire", "netns", name)
                ip("-n", first, "link", "set", f"port{number}", "master", "scwire", "up")
        for number, name in enumerate(names, 1):
            ip("-n", name, "link", "set", "scwire", "up")
            ip("-n", name, "address", "add", f"10.99.0.{number}/24", "dev", "scwire")
            ip("-n", name, "address", "add", f"fd99::{number}/64", "dev", "scwire", "nodad")
        yield names
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespaces here: {error.stderr.strip()}")
    finally:
        for name in names:
            subprocess.run([tool, "netns", "delete", name], check=False, capture_output=True)


@pytest.fixture
def two_hosts() -> Iterator[list[str]]:
    """Two network namespaces; see :func:`hosts`."""
    with hosts(2) as names:
        yield names


@pytest.fixture
def four_hosts() -> Iterator[list[str]]:
    """Four network namespaces; see :func:`hosts`."""
    with hosts(4) as names:
        yield names
