"""Python commands that tests start are forks of one process that has imported torch: an import costs two seconds each.

:func:`install` has ``subprocess.Popen`` ask a warm process (this file, run as a program) for each command of this
interpreter whose options and environment allow it, also in another network namespace. The command is forked as a child
of the process that asked, with its pid, signals and exit code, as if it had been started by ``exec``. It has its
arguments, environment, folder, streams and session, finds torch not yet imported, runs as ``__main__`` and ends as an
interpreter does, until all modules are cleared. A command that starts ranks has a warm process of its own, so that its
ranks are forks as well.

pytest-xdist's workers are such commands of its controller: they begin with torch, and with a warm process each.

What stays cold: tests marked ``cold``, any other ``python -c``, other options of the interpreter, another environment
where a library reads it once, and everything where ``SIMCOLL_TESTS_COLD`` is set.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import gc
import importlib
import importlib.util
import io
import itertools
import json
import os
import random
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import types
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

from simcoll.core.threads import let_gloo_rest

COLD_VARIABLE = "SIMCOLL_TESTS_COLD"

COMMANDS = (
    "numpy",
    "rich.console",
    "simcoll.cli",
    "simcoll.cli.run",
    "simcoll.cli.simulate",
    "simcoll.cli.verify",
    "simcoll.cli.price",
    "simcoll.cli.plan",
    "simcoll.reports.html_report",
)
"""What commands import that need no torch."""

USED = (
    ("simulate", "SC202", "--out", "."),
    ("estimate", "all_reduce", "--bytes", "1MiB", "--nodes", "2", "--html", "page.html"),
)
"""Commands that are carried out once: they import modules late, compile the page's templates and lexers' patterns."""

TORCH = (
    "torch",
    "torch.distributed",
    "torch.distributed.run",
    "torch.distributed.fsdp",
    "torch.distributed.tensor.parallel",
    "torch.distributed.checkpoint",
    "torch._dynamo",
    "simcoll.wrapper.hooks",
    "simcoll.launch.agent",
    "simcoll.cli.preflight",
)

OWN = ("simcoll", "torch.distributed.", "tests.", "benchmarks.", "pytest")
"""Beginnings of the modules that are run warm, beside those in the command's folder: other tools need no torch."""

WORKER = "import sys;exec(eval(sys.stdin.readline()))"
"""With what execnet, which pytest-xdist is built on, starts a worker."""

STARTS_RANKS = ("torch.distributed.run", "torchrun", "simcoll.launch.launcher_process")
SUBCOMMANDS_THAT_START_RANKS = ("run", "simulate", "calibrate")

ONCE = ("LD_", "PYTHON", "OMP_", "MKL_", "MALLOC_", "TORCH_", "GLIBC_", "KMP_")
"""Beginnings of variables that are read when a library is loaded or the interpreter starts."""
LATER = (
    "PYTHONUNBUFFERED",
    "PYTHONPATH",
    "TORCH_DISTRIBUTED_DEBUG",
    "TORCH_DEVICE_BACKEND_AUTOLOAD",
    "TORCH_NCCL_",
    "TORCH_FR_",
)
"""Variables among them that a fork can heed."""

HOLD_GROUPS = (
    "__main__",
    "torch.distributed.distributed_c10d",
    "torch.distributed.device_mesh",
    "simcoll.proof",
    "simcoll.recorder",
    "simcoll.wrapper",
)
"""Beginnings of the modules that may hold a process group."""

_PR_SET_CHILD_SUBREAPER = 36
_PR_GET_TID_ADDRESS = 40
_CLONE_NEWNET = 0x40000000
_CLONE_PARENT = 0x00008000
_CLONE_CHILD_SETTID = 0x01000000
_CLONE_CHILD_CLEARTID = 0x00200000
_SYS_CLONE3 = 435
_MADV_COLLAPSE = 25
_HUGE_PAGE = 1 << 21
_LIBC = ctypes.CDLL(None)
_HOLDING = ctypes.PyDLL(None)  # holds the interpreter's lock while it calls
_LARGEST_REQUEST = 1 << 18
_HANDED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1)


class Warm:
    """The side that asks: the socket of a warm process, which belongs to the one process that has this object."""

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._environment: dict[str, str] = {}
        self.off = importlib.util.find_spec("torch") is None

    def adopt(self, end: socket.socket, environment: Mapping[str, str]) -> None:
        """Take over the warm process at the other end, which was forked for this one."""
        self._socket, self._environment = end, _read_once(environment)
        atexit.register(end.close)

    def start(self, request: dict[str, Any], handles: Sequence[int]) -> int | None:
        """Have the command forked; its pid, or None where it must be started cold."""
        if self.off or os.getpid() != self._owner or COLD_VARIABLE in os.environ:
            return None
        with self._lock:
            if self._socket is None:
                self._begin()
        if _read_once(request["environment"]) != self._environment:
            return None
        return self._ask(request, handles)

    def for_shell(self, folder: Path) -> tuple[dict[str, str], int]:
        """Commands of a shell: what its environment needs, and the handle that it must inherit.

        The folder gets ``python``, ``simcoll`` and others that take the place of the real ones.
        """
        here = Path(sys.executable).parent
        with self._lock:
            if self._socket is None:
                self._begin()
        assert self._socket is not None
        folder.mkdir()
        client = Path(__file__).with_name("warm_client.py")
        for name in ("python", "python3", "simcoll", "torchrun"):
            program = sys.executable if name.startswith("python") else here / name
            (folder / name).write_text(f'#!/bin/sh\nexec {sys.executable} -IS {client} {program} "$@"\n')
            (folder / name).chmod(0o755)
        handle = self._socket.fileno()
        return {
            "PATH": f"{folder}{os.pathsep}{here}{os.pathsep}{os.environ['PATH']}",
            "WARM_PYTHON": str(handle),
        }, handle

    def _begin(self) -> None:
        """The first command starts the warm process, cold."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("SIMCOLL_")}
        for name in [name for name in environment if name.startswith(LATER)]:
            del environment[name]
        before, self.off = self.off, True
        process = subprocess.Popen(
            [sys.executable, __file__, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        self.off = before
        process.returncode = 0  # it ends with this process, and nobody waits for it
        theirs.close()
        _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self.adopt(ours, environment)

    def _ask(self, request: dict[str, Any], handles: Sequence[int]) -> int | None:
        assert self._socket is not None
        words = json.dumps(request).encode()
        if len(words) >= _LARGEST_REQUEST // 2 or len(handles) > 200:
            return None
        reader, writer = os.pipe()
        try:
            socket.send_fds(self._socket, [words], [writer, *handles])
        finally:
            os.close(writer)
        with os.fdopen(reader, "rb") as answer:
            pid = answer.read()
        if not pid:
            raise RuntimeError("the warm process of tests/support/warm.py has ended")
        return int(pid)


def _read_once(environment: Mapping[str, str]) -> dict[str, str]:
    """The part of an environment that a fork cannot have otherwise."""
    return {name: value for name, value in environment.items() if name.startswith(ONCE) and not name.startswith(LATER)}


WARM = Warm()
_EXECUTE = subprocess.Popen._execute_child  # type: ignore[attr-defined]


def install() -> None:
    """Have this process's commands forked where they can be: from a process that has torch, on the Pythons below."""
    if sys.version_info < (3, 11) or importlib.util.find_spec("torch") is None:
        return
    subprocess.Popen._execute_child = _execute_child  # type: ignore[attr-defined]


def _execute_child(
    self: Any,
    args: Any,
    executable: Any,
    preexec_fn: Any,
    close_fds: bool,
    pass_fds: Sequence[int],
    cwd: Any,
    env: Mapping[str, str] | None,
    startupinfo: Any,
    creationflags: int,
    shell: bool,
    *rest: Any,
) -> None:
    """``Popen._execute_child`` of Python 3.11 to 3.13."""
    pipes, (_, gid, gids, uid, umask, session, process_group) = rest[:6], rest[6:]
    standard = [pipes[0], pipes[3], pipes[5]]
    plain = not shell and executable is None and preexec_fn is None and close_fds and process_group == -1
    plain = plain and (gid, gids, uid, umask) == (None, None, None, -1) and not isinstance(args, (str, bytes))
    pid = None
    if plain:
        environment = {os.fsdecode(name): os.fsdecode(value) for name, value in (env or os.environ).items()}
        folder = os.fsdecode(cwd or os.getcwd())
        program = program_of([os.fsdecode(word) for word in args], folder)
        paths = _python_paths(environment)
        if program is not None and Path(folder).is_dir() and not any(map(_replaces_torch, paths)):
            request = {
                "program": program,
                "environment": environment,
                "folder": folder,
                "session": bool(session),
                "process_group": os.getpgrp(),
                "ignored": [number for number in _HANDED_ON if signal.getsignal(number) is signal.SIG_IGN],
                "blocked": [*signal.pthread_sigmask(signal.SIG_BLOCK, ())],
                "handles": [0, 1, 2, *pass_fds],
            }
            given = [own if handle == -1 else handle for handle, own in zip(standard, range(3), strict=True)]
            pid = WARM.start(request, [*given, *pass_fds])
    if pid is None:
        _EXECUTE(
            self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo, creationflags, shell, *rest
        )
        return
    sys.audit("subprocess.Popen", args[0], args, cwd, env)
    self.pid = pid
    self._child_created = True
    self._close_pipe_fds(*pipes)


def program_of(words: list[str], folder: str) -> dict[str, Any] | None:
    """What a command line has this interpreter run; None where it is another program, or has options of its own."""
    here = Path(sys.executable).parent
    unbuffered = False
    if Path(words[0]).name == "ip" and words[1:3] == ["netns", "exec"]:
        inner = program_of(words[4:], folder)
        return inner and {**inner, "network": words[3]}
    if Path(words[0]).parent == here and Path(words[0]).name in ("simcoll", "torchrun"):
        return {"script": words[0], "arguments": words[1:], "unbuffered": False, "ranks": _starts_ranks(words)}
    if words[0] != sys.executable:
        return None
    rest = words[1:]
    if rest[:1] == ["-u"]:
        unbuffered, rest = True, rest[1:]
    if rest and rest[0].startswith("-m") and rest[0] != "-m":
        rest = ["-m", rest[0].removeprefix("-m"), *rest[1:]]
    if rest == ["-c", WORKER]:
        return {"code": WORKER, "unbuffered": unbuffered, "ranks": True}
    if rest[:1] == ["-m"] and len(rest) > 1:
        what = {"module": rest[1], "arguments": rest[2:]}
        first = folder
    elif rest and not rest[0].startswith("-") and (Path(folder) / rest[0]).is_file():
        what = {"script": rest[0], "arguments": rest[1:]}
        first = str((Path(folder) / rest[0]).parent)
    else:
        return None
    if "module" in what and not what["module"].startswith(OWN) and not (Path(folder) / f"{rest[1]}.py").exists():
        return None
    if _replaces_torch(first):
        return None
    return {**what, "unbuffered": unbuffered, "ranks": _starts_ranks(rest)}


def _python_paths(environment: Mapping[str, str]) -> list[str]:
    return [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]


def _replaces_torch(folder: str) -> bool:
    """Whether modules of a folder would be imported in place of torch, or with it."""
    return any(any(Path(folder).glob(name)) for name in ("torch", "torch.py", "*.dist-info"))


def _starts_ranks(words: Sequence[str]) -> bool:
    names = [Path(word).name for word in words[:3]]
    if any(name in STARTS_RANKS for name in names):
        return True
    return "simcoll" in names and any(word in SUBCOMMANDS_THAT_START_RANKS for word in words[:3])


# The warm process.


class Modules:
    """All modules that this process has, as forks of it find them in ``sys.modules``.

    To touch the name or the module of each would have a fork copy most of what was imported; so the contents of
    ``sys.modules`` are exchanged as a whole. What a fork has imported itself stands at the end.
    """

    def __init__(self, modules: Mapping[str, types.ModuleType]) -> None:
        self._modules = {**modules}
        self._last = next(reversed(self._modules))
        self._holding = [name for name in modules if name.startswith(HOLD_GROUPS) or name in sys.builtin_module_names]

    def restore(self, after: Modules) -> None:
        """Have all of them, where those of ``after`` were, and what came after these."""
        later = after.later()
        main = sys.modules["__main__"]
        _exchange(sys.modules, self._modules)
        sys.modules["__main__"] = main
        for name, module in later.items():
            sys.modules.setdefault(name, module)

    def later(self) -> dict[str, types.ModuleType]:
        """What was imported since; all, where the last one of these was replaced."""
        names = [*itertools.takewhile(lambda name: name != self._last, reversed(sys.modules))]
        return {name: sys.modules[name] for name in reversed(names)}

    def keep(self) -> None:
        """Have the interpreter's end clear none of them: writing to all takes its time.

        Those that hold what a command has made, its process groups, are cleared.
        """
        cleared = {name: sys.modules[name] for name in self._holding if name in sys.modules} | self.later()
        _exchange(sys.modules, cleared)
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(cleared))
        ctypes.pythonapi.PyObject_GC_UnTrack(ctypes.py_object(cleared))


def _exchange(one: dict[str, types.ModuleType], other: dict[str, types.ModuleType]) -> None:
    """Exchange the contents of two dicts: in CPython, what comes after the count of references and the type."""
    begin, size = object.__basicsize__, dict.__basicsize__ - object.__basicsize__
    places = [id(each) + begin for each in (one, other)]
    contents = [ctypes.string_at(place, size) for place in places]
    for place, content in zip(places, reversed(contents), strict=True):
        ctypes.memmove(place, content, size)


class Hidden:
    """torch and what needs it, imported and yet not there until somebody imports it; then simcoll's hook is called."""

    def __init__(self, names: Sequence[str]) -> None:
        self._specs = {name: sys.modules[name].__spec__ for name in names}
        self._all = Modules(sys.modules)
        for name in names:
            del sys.modules[name]
        self._others = Modules(sys.modules)
        sys.meta_path.insert(0, self)

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name not in self._specs:
            return None
        real = self._specs[name]
        spec = ModuleSpec(name, self, origin=real.origin if real else None)
        spec.submodule_search_locations = real.submodule_search_locations if real else None
        return spec

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        sys.meta_path.remove(self)
        self._all.restore(self._others)
        return sys.modules[spec.name]

    def exec_module(self, module: types.ModuleType) -> None:
        # importlib has replaced the spec, before this and for this module alone.
        module.__spec__ = self._specs[module.__name__]
        from torch import distributed

        from simcoll.autoload import autoload

        distributed.set_debug_level_from_env()
        if os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") == "1":
            autoload()

    def keep(self) -> None:
        """See :meth:`Modules.keep`."""
        (self._others if self in sys.meta_path else self._all).keep()


def warm_up() -> Hidden:
    """Import everything; what of it needs torch."""
    for name in COMMANDS:
        importlib.import_module(name)
    use_commands()
    before = set(sys.modules)
    for name in TORCH:
        importlib.import_module(name)
    from simcoll.dryrun.prepared_imports import thaw
    from simcoll.dryrun.prepared_imports import warm_up as warm_up_for_dry_runs

    warm_up_for_dry_runs()
    atexit.unregister(thaw)  # a fork would copy all that was imported to look through it at its end
    hidden = Hidden(
        [
            name
            for name, module in sys.modules.items()
            if name not in before and name.partition(".")[0] in ("torch", "simcoll") and module is not None
        ]
    )
    settle()
    collapse_memory()
    return hidden


def use_commands() -> None:
    """Carry out what makes this process hold what commands make once and keep."""
    from simcoll.cli import main

    shown = io.StringIO()
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.chdir(folder),
        contextlib.redirect_stdout(shown),
        contextlib.redirect_stderr(shown),
    ):
        for words in USED:
            main(words)


def settle() -> None:
    """What is here stays as it is in all forks: neither their collector nor their end goes through it."""
    for library in weakref.finalize._registry:  # type: ignore[attr-defined]
        library.atexit = False  # what torch registered when it was imported need not be taken back
    gc.collect()
    gc.freeze()


def collapse_memory() -> None:
    """Move what this process has allocated into huge pages: a fork then copies one page-table entry instead of 512.

    Most of what a fork with torch costs, and as much when it ends, are those entries. Linux does it since 6.1;
    elsewhere nothing changes.
    """
    madvise = _LIBC.madvise
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        place, access, _, _, file, *name = line.split()
        if access == "rw-p" and file == "0" and name in ([], ["[heap]"]):
            first, last = (int(address, 16) for address in place.split("-"))
            first, last = -(-first // _HUGE_PAGE) * _HUGE_PAGE, last // _HUGE_PAGE * _HUGE_PAGE
            if first < last:
                madvise(first, last - first, _MADV_COLLAPSE)


def serve(end: socket.socket, hidden: Hidden) -> dict[str, Any]:
    """Fork a command for each request; returns in a command alone, with what it is to run."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        words, handles, _, _ = socket.recv_fds(end, _LARGEST_REQUEST, 253)
        if not words:
            os._exit(0)  # what was imported to be warm has nothing to clean up here
        request = json.loads(words)
        if "words" in request:
            request["program"] = _program_for_shell(request)
        if request["program"] is None:
            os.write(handles[0], b"0\n")
        elif _fork_command(handles, waits="words" in request):
            _become(request, handles, end, hidden)
            program: dict[str, Any] = request["program"]
            return program
        for handle in handles:
            os.close(handle)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _program_for_shell(request: dict[str, Any]) -> dict[str, Any] | None:
    """What ``warm_client.py`` asks for, if it can be had here."""
    same = _read_once(request["environment"]) == _read_once(STARTED_WITH)
    return program_of(request["words"], request["folder"]) if same else None


def _fork_command(handles: Sequence[int], *, waits: bool) -> bool:
    """Fork a child of the process that asks, which is the parent of this one; true in the command.

    Where the kernel lacks that, fork twice: the process between ends, so that the kernel gives the command to the
    process that asks. That of a client of a shell waits for the command and tells of its end.
    """
    if not waits and (pid := _fork_sibling()) is not None:
        return pid == 0
    between = os.fork()
    if between:
        if not waits:
            os.waitpid(between, 0)
        return False
    parent, child = os.getpid(), os.fork()
    if child and waits:
        for handle in handles[1:]:
            os.close(handle)
        os.write(handles[0], f"{os.waitpid(child, 0)[1]}\n".encode())
    if child:
        os._exit(0)
    while not waits and os.getppid() == parent:
        time.sleep(0.0002)
    return True


def _fork_sibling() -> int | None:
    """``os.fork()``, but for the parent, which is that of this process; None where the kernel cannot.

    The C library has no function for it. The kernel writes the thread's id where that library keeps it, as after its
    own fork; what else it does then is for processes of several threads.
    """
    place = ctypes.c_void_p()
    if _LIBC.prctl(_PR_GET_TID_ADDRESS, ctypes.byref(place), 0, 0, 0) or not place.value:
        return None
    flags = _CLONE_PARENT | _CLONE_CHILD_SETTID | _CLONE_CHILD_CLEARTID
    arguments = (ctypes.c_uint64 * 8)(flags, 0, place.value)
    python = ctypes.pythonapi
    python.PyOS_BeforeFork()
    pid = int(_HOLDING.syscall(_SYS_CLONE3, arguments, ctypes.sizeof(arguments)))
    if pid:
        python.PyOS_AfterFork_Parent()
    else:
        python.PyOS_AfterFork_Child()
    return pid if pid >= 0 else None


def _become(request: dict[str, Any], handles: list[int], end: socket.socket, hidden: Hidden) -> None:
    """Turn this fork into the command."""
    end.close()
    if request["session"]:
        os.setsid()
    else:
        try:
            os.setpgid(0, request["process_group"])
        except OSError:
            os.setsid()  # what asks is in another session
    program = request["program"]
    if "network" in program:
        with Path("/run/netns", program["network"]).open("rb") as network:
            _LIBC.setns(network.fileno(), _CLONE_NEWNET)
    own = _fork_warm_process(handles, hidden) if program["ranks"] else None
    answer, *given = handles
    spare = 1 + max([*given, *request["handles"], answer, own.fileno() if own else 0])
    placed = []
    for number, handle in enumerate(given):
        os.dup2(handle, spare + number)
        os.close(handle)
        placed.append(spare + number)
    kept = {answer} | ({own.fileno()} if own else set())
    for source, target in zip(placed, request["handles"], strict=True):
        if target in kept:
            os._exit(97)  # a handle that the command is given by number is one that is needed here
        os.dup2(source, target, inheritable=True)
        os.close(source)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    sys.path[1:1] = _python_paths(request["environment"])
    _renew_streams(program["unbuffered"] or bool(os.environ.get("PYTHONUNBUFFERED")))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in request["ignored"]:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, request["blocked"])
    # What is registered first is called last.
    atexit.register(hidden.keep)
    # As simcoll does: ranks without it are aborted at their end now and then, on a busy machine one in ten.
    atexit.register(let_gloo_rest)
    # Functions of on_exit are called from the last to the first: what the command itself makes is destroyed before.
    _LIBC.on_exit(_LIBC._exit, None)
    random.seed()
    sys.modules["numpy"].random.seed()
    if own is not None:
        _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    WARM.__init__()  # type: ignore[misc]  # another process, another owner
    WARM.off = own is None
    if own is not None:
        WARM.adopt(own, STARTED_WITH)
    os.write(answer, f"{os.getpid()}\n".encode())
    os.close(answer)


class End:
    """Ends the process when it is destroyed, after all modules but ``sys`` and ``builtins``.

    What the interpreter does afterwards writes to all that was imported before the process was forked.
    """

    def __init__(self, code: int) -> None:
        self._code, self._exit = code, os._exit
        self._streams = [stream for stream in (sys.stdout, sys.stderr) if stream is not None]

    def __del__(self) -> None:
        for stream in self._streams:
            try:
                stream.flush()
            except OSError:
                self._code = 120  # as the interpreter's own
            except ValueError:
                pass  # it is closed
        self._exit(self._code)


def run_to_the_end(run: Callable[[], object]) -> None:
    """Call what is the whole program of this fork, and prepare its :class:`End`."""
    code = 0
    try:
        run()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        raise
    except KeyboardInterrupt:
        code = -1  # the interpreter ends itself by the signal
        raise
    except BaseException:
        code = 1
        raise
    finally:
        # A fork of a fork passes here twice with one exception.
        if code >= 0 and not hasattr(sys, "end_of_simcoll_test"):
            sys.end_of_simcoll_test = End(code)  # type: ignore[attr-defined]


def _fork_warm_process(handles: Sequence[int], hidden: Hidden) -> socket.socket:
    """A warm process for this command: it must be forked while there is nothing of the command yet."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        ours.close()
        for handle in handles:
            os.close(handle)
        raise Again(theirs)
    theirs.close()
    return ours


class Again(Exception):
    """This process is a warm one, and goes on with the socket."""

    def __init__(self, end: socket.socket) -> None:
        self.end = end


def _renew_streams(unbuffered: bool) -> None:
    def stream(handle: int, mode: str, errors: str) -> Any:
        try:
            raw = io.FileIO(handle, mode, closefd=False)
        except OSError:
            return None
        if mode == "r":
            return io.TextIOWrapper(io.BufferedReader(raw), "utf-8", errors)
        direct = unbuffered or handle == 2
        return io.TextIOWrapper(
            io.BufferedWriter(raw), "utf-8", errors, line_buffering=raw.isatty() or handle == 2, write_through=direct
        )

    sys.stdin = sys.__stdin__ = stream(0, "r", "strict")  # type: ignore[misc]
    sys.stdout = sys.__stdout__ = stream(1, "w", "strict")  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = stream(2, "w", "backslashreplace")  # type: ignore[misc]


def run_as_main(program: dict[str, Any]) -> None:
    """Execute what ``python -m MODULE``, ``python SCRIPT`` or ``python -c CODE`` would."""
    if "module" in program:
        sys.argv = ["-m", *program["arguments"]]
        sys.path[0] = os.getcwd()
        warnings.filterwarnings("ignore", ".*found in sys.modules after import of package", RuntimeWarning)
        run_module = runpy._run_module_as_main  # type: ignore[attr-defined]
        run_module(program["module"])
        return
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    if "code" in program:
        sys.modules["tests.support.warm"] = sys.modules["simcoll_tests_warm"]  # the one that has the warm process
        sys.argv, sys.path[0] = ["-c"], ""
        exec(program["code"], main.__dict__)
        return
    script = program["script"]
    sys.argv = [script, *program["arguments"]]
    sys.path[0] = str(Path(os.path.realpath(script)).parent)
    main.__file__ = script
    exec(compile(Path(script).read_bytes(), script, "exec"), main.__dict__)


if __name__ == "__main__":
    STARTED_WITH = dict(os.environ)
    sys.modules["simcoll_tests_warm"] = sys.modules["__main__"]  # which the command's module replaces
    _hidden, _end = warm_up(), socket.socket(fileno=int(sys.argv[1]))
    install()
    while True:
        try:
            _program = serve(_end, _hidden)
        except Again as again:
            _end = again.end
        else:
            break
    run_to_the_end(functools.partial(run_as_main, _program))
