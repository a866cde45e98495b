"""Reads the files of thousands of ranks: several processes at once, where that pays, each in bounded memory.

A file that takes too much memory, or ends the process that reads it, costs itself alone. The processes are started
afresh rather than forked, so that threads of this one do not matter, and everything works where there is no fork.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import selectors
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import TypeAlias, cast

from simcoll.blackbox import UnreadableError
from simcoll.blackbox.file_kinds import RecordFile, read_record_file
from simcoll.blackbox.format import SUFFIX
from simcoll.blackbox.reader_wire import Receiver, kept_of
from simcoll.blackbox.reader_worker import LENGTH, READY
from simcoll.blackbox.table import KnownEntries
from simcoll.core.process import cores, signal_name

Outcome: TypeAlias = "RecordFile | UnreadableError"
Progress: TypeAlias = Callable[[int, int], None]
"""Told how many of how many files are read."""

MEMORY_LIMIT = 2 << 30
"""Bytes that one process may take for reading."""

_MANY_FILES = 1024
_TRIED = 128
"""Files of many that are read here in any case."""

_WAITED = 3.0
"""So many times as long as it takes to read files do they take where they are waited for."""

_LARGE_BYTES = 16 << 20
_MOST_WORKERS = 16
_AHEAD = 4
_PIPE_BYTES = 1 << 20
_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "import simcoll.blackbox.reader_worker as worker; worker.main({})"
)


def read_files(
    paths: Sequence[Path | str],
    *,
    workers: int | None = None,
    progress: Progress | None = None,
    limit: int = MEMORY_LIMIT,
) -> list[Outcome]:
    """Read each file: its content, or the error for which it cannot be read, in the order of ``paths``.

    ``workers`` is the number of processes (0: read here). Left out, files are read here where that is sooner: to take
    what another process has read costs more than to read a black box from memory. Where there are large files, or many
    and the first of them are waited for, as on a shared file system, as many processes read as there are cores for this
    one. ``limit`` bounds the memory of each, in bytes.
    """
    outcomes: dict[int, Outcome] = {}
    known = KnownEntries()

    def read_here(indices: Iterable[int]) -> None:
        for index in indices:
            outcomes[index] = _read_here(paths[index], known)
            _tell(progress, len(outcomes), len(paths))

    count = min(workers, len(paths)) if workers is not None else _workers_for(paths, read_here)
    rest = [index for index in range(len(paths)) if index not in outcomes]
    with contextlib.suppress(_CannotStartError):
        given = [paths[index] for index in rest]
        for place, outcome in _read_apart(given, count, limit, kept_of(known)) if count and rest else ():
            outcomes[rest[place]] = outcome
            _tell(progress, len(outcomes), len(paths))
    read_here(index for index in rest if index not in outcomes)
    return [outcomes[index] for index in range(len(paths))]


def _workers_for(paths: Sequence[Path | str], read_here: Callable[[Iterable[int]], None]) -> int:
    """Returns the number of workers; 0 where files are read here sooner. To find out, some may be read already."""
    if not any(map(_is_large, paths)):
        if len(paths) < _MANY_FILES:
            return 0
        begun, busy, ready = time.perf_counter(), time.thread_time(), _ready_seconds()
        read_here(range(_TRIED))
        # The time for which other processes had the cores is none for which files are waited for.
        if time.perf_counter() - begun - (_ready_seconds() - ready) < _WAITED * (time.thread_time() - busy):
            return 0
    return min(cores(), len(paths), _MOST_WORKERS)


def _ready_seconds() -> float:
    """How long this thread could have run while others did; 0 where the system does not say."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def _is_large(path: Path | str) -> bool:
    """True for a large file; the size of a black box says little, and it is bounded by its format."""
    try:
        return not str(path).endswith(SUFFIX) and os.stat(path).st_size > _LARGE_BYTES
    except OSError:
        return False


def _tell(progress: Progress | None, done: int, total: int) -> None:
    if progress is not None:
        progress(done, total)


def _read_here(path: Path | str, known: KnownEntries) -> Outcome:
    try:
        return read_record_file(path, known)
    except UnreadableError as error:
        return error


class _CannotStartError(Exception):
    """No process can be started that reads files."""


@dataclass(slots=True, eq=False)
class _Worker:
    """One reading process, and the files (by index) that it was given and has not answered, in order."""

    process: subprocess.Popen[bytes]
    receiver: Receiver
    pending: deque[int] = field(default_factory=deque)
    ready: bool = False

    def give(self, index: int, path: Path | str) -> None:
        """Ask for a file; a dead process shows when its answer is waited for."""
        name = os.fsencode(path)
        self.pending.append(index)
        with contextlib.suppress(OSError):
            cast(FileIO, self.process.stdin).write(LENGTH.pack(len(name)) + name)

    def end(self) -> int:
        """End the process, whatever it does; returns its exit code."""
        self.process.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        return self.process.wait()


def _read_apart(
    paths: Sequence[Path | str], count: int, limit: int, kept: dict[object, object]
) -> Iterator[tuple[int, Outcome]]:
    """Each file's index and outcome, in the order in which they come."""
    with selectors.DefaultSelector() as selector:
        pool = _Pool(paths, limit, selector, deque(range(len(paths))), kept)
        try:
            yield from pool.outcomes(count)
        finally:
            pool.end()


@dataclass(slots=True, eq=False)
class _Pool:
    """The processes that read, and the files (by index) that none of them was given yet."""

    paths: Sequence[Path | str]
    limit: int
    selector: selectors.BaseSelector
    left: deque[int]
    kept: dict[object, object]
    workers: set[_Worker] = field(default_factory=set)

    def outcomes(self, count: int) -> Iterator[tuple[int, Outcome]]:
        """Have so many processes read all files."""
        for _ in range(count):
            self._start()
        while self.left or any(worker.pending for worker in self.workers):
            for key, _ in self.selector.select():
                yield from self._answered(key.data)

    def end(self) -> None:
        """End all processes."""
        for worker in self.workers:
            worker.end()

    def _start(self) -> None:
        worker = _started(self.kept, self.limit)
        self.workers.add(worker)
        self.selector.register(worker.receiver.pipe, selectors.EVENT_READ, worker)

    def _answered(self, worker: _Worker) -> Iterator[tuple[int, Outcome]]:
        try:
            answer = worker.receiver.receive()
        except (EOFError, OSError, pickle.UnpicklingError):
            yield from self._given_up(worker)
            return
        if worker.ready:
            yield worker.pending.popleft(), cast("Outcome", answer)
        worker.ready = worker.ready or answer == READY
        while self.left and len(worker.pending) < _AHEAD:
            index = self.left.popleft()
            worker.give(index, self.paths[index])

    def _given_up(self, worker: _Worker) -> Iterator[tuple[int, Outcome]]:
        """The outcome of the file at which a process died; the others that it was given go to another one."""
        self.selector.unregister(worker.receiver.pipe)
        self.workers.remove(worker)
        code = _exit_code(worker)
        if not worker.ready:
            raise _CannotStartError
        if worker.pending:
            index = worker.pending.popleft()
            how = signal_name(-code) if code < 0 else f"exit code {code}"
            reason = f"the process that read it ended by {how}; leave the file out"
            yield index, UnreadableError(f"{self.paths[index]}: {reason}")
        self.left.extendleft(reversed(worker.pending))
        if self.left:
            self._start()


def _exit_code(worker: _Worker) -> int:
    """Waits up to one second for the worker to end by itself, then ends it; returns its exit code."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        worker.process.wait(timeout=1.0)
    return worker.end()


def _started(kept: dict[object, object], limit: int) -> _Worker:
    # Its own threads would only get in the way of the others', and their stacks count as memory.
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-I", "-c", _START.format(limit), json.dumps(sys.path)]
    try:
        # Ctrl-C reaches every process of the session, also one that has just begun; this one ends its readers itself.
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            env=environment,
            start_new_session=True,
        )
    except OSError as error:
        raise _CannotStartError from error
    answers = cast(FileIO, process.stdout)
    _widen(answers.fileno())
    return _Worker(process, Receiver(answers, kept))


def _widen(pipe: int) -> None:
    """Let a pipe hold a whole answer, so that a process goes on reading while its last answer is taken."""
    try:
        import fcntl

        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    except (ImportError, AttributeError, OSError):
        return
