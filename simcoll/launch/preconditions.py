"""Checks before a job is started, each failure one line: the mode, the program, torch, the folder, its free space."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import importlib.machinery
import importlib.util
import os
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from simcoll.blackbox.format import initial_size
from simcoll.blackbox.table import reserve
from simcoll.blackbox.writer import BlackBoxError, slots_wanted
from simcoll.errors import BAD_INPUT, CANNOT_START, ConfigurationError
from simcoll.launch.nodes.wire import lost_seconds
from simcoll.launch.torchrun_arguments import ProgramKind, RunRequest
from simcoll.values.choice import budget_wanted, values_wanted

MODES = ("off", "record", "check", "detail")
"""The modes that a job can run in."""

OLDEST_TORCH = (2, 11)
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class PreconditionError(Exception):
    """The job is not started. ``code`` is the exit code: 2 for usage and unusable input, 1 for a program that fails."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


def check_request(request: RunRequest) -> None:
    """Check mode, variables, program and torch without importing torch; raises :class:`PreconditionError`."""
    if request.mode not in MODES:
        raise PreconditionError(BAD_INPUT, f"unknown mode {request.mode!r}: expected one of {', '.join(MODES)}")
    try:
        values_wanted(request.values)
        budget_wanted()
        lost_seconds()
    except ConfigurationError as error:
        raise PreconditionError(BAD_INPUT, str(error)) from None
    if request.kind is ProgramKind.COMMAND and shutil.which(request.program) is None:
        raise PreconditionError(BAD_INPUT, f"{request.program}: command not found; give a program that can be executed")
    check_torch()
    same_python = request.kind is not ProgramKind.COMMAND and "PYTHON_EXEC" not in os.environ
    if request.mode != "off" and same_python:
        check_installed()
    if request.kind is ProgramKind.SCRIPT:
        check_script(Path(request.program), compiles="PYTHON_EXEC" not in os.environ)


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Keep other jobs out of a folder, as their files would replace those of this one.

    Raises :class:`PreconditionError` where a job records there now. Where nothing can be locked, nobody is kept out.
    """
    fd = -1
    try:
        try:
            fd = os.open(folder, os.O_RDONLY)
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PreconditionError(
                BAD_INPUT, f"--out {folder}: another simcoll run records there now; give each job a folder of its own"
            ) from None
        except OSError:
            pass
        yield
    finally:
        if fd >= 0:
            os.close(fd)


def check_torch() -> None:
    """Check that a torch is installed that simcoll works with; raises :class:`PreconditionError`."""
    expected = ".".join(map(str, OLDEST_TORCH))
    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError:
        if importlib.util.find_spec("torch") is not None:
            return
        advice = f"install torch {expected} or newer (pip install 'simcoll[torch]')"
        raise PreconditionError(CANNOT_START, f"torch is not installed: {advice}") from None
    numbers = version.split("+")[0].split(".")[:2]
    if all(number.isdecimal() for number in numbers) and tuple(map(int, numbers)) < OLDEST_TORCH:
        raise PreconditionError(
            CANNOT_START, f"torch {version} is too old: simcoll needs {expected} or newer; upgrade torch"
        )


def check_installed() -> None:
    """Check that torch will find simcoll in the ranks: PYTHONPATH is not enough; raises :class:`PreconditionError`."""
    hooks = metadata.entry_points(group="torch.backends")
    if not any(hook.value == "simcoll.autoload:autoload" for hook in hooks):
        raise PreconditionError(
            CANNOT_START,
            f"simcoll is not installed in {sys.executable}: torch loads it in the ranks by its entry point, which is "
            "in simcoll-*.dist-info; a copy of its folder, or an archive of it, is not enough; use pip install",
        )


def check_script(path: Path, *, compiles: bool) -> None:
    """Check that a script is there and, unless another Python runs it, that it compiles; raises PreconditionError.

    Folders and archives with a ``__main__.py``, and compiled files, run as Python runs them.
    """
    if os.path.isdir(path):
        if os.path.isfile(path / "__main__.py"):
            return
        raise PreconditionError(BAD_INPUT, f"{path} is a folder without __main__.py: expected a Python script")
    try:
        source = path.read_bytes()
    except OSError as error:
        reason = f"{path}: cannot be read: {error.strerror}; give the path of a Python script"
        raise PreconditionError(BAD_INPUT, reason) from None
    if compiles and b"\0" not in source:
        _check_syntax(path, source)


def check_module(name: str) -> None:
    """Check that there is a package or module of a dotted name's first part; raises :class:`PreconditionError`.

    Nothing is imported: that is the program's part.
    """
    first = name.partition(".")[0]
    if not all(part.isidentifier() for part in name.split(".")):
        raise PreconditionError(BAD_INPUT, f"-m {name:.80}: expected the name of a module, such as package.train")
    if importlib.machinery.PathFinder.find_spec(first, [os.getcwd(), *sys.path]) is None:
        reason = f"-m {name:.80}: there is no module {first} in this folder or among the installed packages"
        raise PreconditionError(BAD_INPUT, f"{reason}; give the path of a script, or start in the folder that holds it")


def _check_syntax(path: Path, source: bytes) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(source, str(path), "exec", dont_inherit=True)
    except SyntaxError as error:
        line = (error.text or "").strip()
        quoted = f": {line}" if line else ""
        text = f"{path}:{error.lineno or 1}: {type(error).__name__}: {error.msg}{quoted}"
        raise PreconditionError(CANNOT_START, text) from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise PreconditionError(CANNOT_START, f"{path}: Python cannot compile it: {error}") from None


def prepare_folder(wanted: Path | None, local_ranks: int) -> Path:
    """Make the folder of a job's results, with room for its black boxes; absolute. Raises PreconditionError."""
    try:
        need = local_ranks * initial_size(slots_wanted())
    except BlackBoxError as error:
        raise PreconditionError(BAD_INPUT, str(error.strerror)) from None
    folder, made = wanted, wanted is None or not os.path.lexists(wanted)
    try:
        folder = _fresh_folder() if wanted is None else wanted
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as probe:
            reserve(probe.fileno(), 0, need)
        return folder.resolve()
    except OSError as error:
        if made and folder is not None:
            with contextlib.suppress(OSError):
                folder.rmdir()
        reason = "it is a file" if wanted is not None and os.path.isfile(wanted) else error.strerror
        advice = "choose another folder with --out"
        if error.errno in _NO_ROOM:
            advice = f"the black boxes take {need / (1 << 20):.0f} MiB; {advice}, or free space"
        place = folder or "simcoll-out"
        raise PreconditionError(BAD_INPUT, f"cannot write results into {place}: {reason} ({advice})") from None


def _fresh_folder() -> Path:
    """``simcoll-out/`` and the time; a number behind it where two jobs start in one second."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    for attempt in range(1, 1000):
        folder = Path("simcoll-out") / (stamp if attempt == 1 else f"{stamp}-{attempt}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            if not folder.is_dir():
                raise
            continue
        return folder
    raise FileExistsError(17, "too many folders of this second", str(folder))
