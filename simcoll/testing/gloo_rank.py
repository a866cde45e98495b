"""The process of one rank of a test on real Gloo, from the fork to its end.

Exceptions are sent between processes as :class:`SentException`, with their tracebacks, since frames cannot be pickled.
The unpacked exception has a traceback through the same lines of the same files, so that pytest, for instance, shows the
program.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, NoReturn

import torch.distributed as dist

from simcoll.backends.engine.outcome import exit_code
from simcoll.backends.engine.tickets import is_skip
from simcoll.launch.fork import end_as_interpreter, leave_parent
from simcoll.wrapper.hooks import enable


@dataclass(frozen=True, slots=True)
class _Frame:
    """One frame: the function, its first line, the current line."""

    file: str
    function: str
    begins: int
    line: int


@dataclass(frozen=True, slots=True)
class SentException:
    """An exception to send. ``pickled`` is None for one that cannot be pickled; ``text`` then describes it.

    ``outcome`` is the function of pytest that raised it: pytest's exceptions cannot be pickled.
    """

    pickled: bytes | None
    text: str
    frames: tuple[_Frame, ...]
    outcome: str | None = None

    def unpack(self) -> BaseException:
        """The exception, or a RuntimeError in its place. Only for what this process's own child has sent."""
        kind = RuntimeError if self.outcome is None else _outcomes()[self.outcome]
        error: BaseException = kind(self.text) if self.pickled is None else pickle.loads(self.pickled)  # noqa: S301
        part: TracebackType | None = None
        for frame in reversed(self.frames):
            part = _traceback(frame, part)
        return error.with_traceback(part)


def pack_exception(error: BaseException) -> SentException:
    """Make an exception ready to be pickled."""
    frames = tuple(
        _Frame(frame.f_code.co_filename, frame.f_code.co_name, frame.f_code.co_firstlineno, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
    )
    for outcome, kind in _outcomes().items():
        if type(error) is kind:
            return SentException(None, str(error), frames, outcome)
    try:
        pickled = pickle.dumps(error)
        pickle.loads(pickled)  # noqa: S301  # one's own
    except Exception:
        return SentException(None, f"{type(error).__name__}: {error}", frames)
    return SentException(pickled, "", frames)


def _outcomes() -> dict[str, type[BaseException]]:
    """The exceptions by which pytest's functions end a test, where pytest runs."""
    pytest = sys.modules.get("pytest")
    return {name: getattr(pytest, name).Exception for name in ("skip", "xfail", "fail")} if pytest else {}


def _traceback(frame: _Frame, following: TracebackType | None) -> TracebackType:
    """A traceback entry at a line of a file: a code object with that name and line runs, and returns its own frame."""
    code = compile("\n" * max(frame.line - frame.begins, 0) + "frames.append(_getframe())", frame.file, "exec")
    found: list[FrameType] = []
    exec(  # noqa: S102  # the line above
        code.replace(co_name=frame.function, co_firstlineno=frame.begins), {"frames": found, "_getframe": sys._getframe}
    )
    return TracebackType(following, found[0], found[0].f_lasti, max(frame.line, 1))


def run_store(pipe: Connection) -> NoReturn:
    """Run the process with the ranks' store; sends its port through the pipe."""
    try:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        pipe.send(store.port)
        with contextlib.suppress(EOFError):
            pipe.recv()
    finally:
        # The parent's program must never go on here.
        os._exit(0)


def become_rank(
    body: Callable[[int], object],
    rank: int,
    size: int,
    port: int,
    pipe: Connection,
    folder: Path,
    timeout: float,
    values: str | None = None,
) -> NoReturn:
    """Run ``body(rank)`` in a default group, send its result through the pipe, and end as an interpreter does."""
    code, answer = 1, ("nothing", b"")
    try:
        _begin(rank, size, port, folder, values)
        _join(rank, size, port, timeout)
        answer = ("result", _pickled(body(rank), rank))
        if dist.is_initialized():
            dist.destroy_process_group()
        code = 0
    except BaseException as raised:
        error = _advised(raised)
        code = exit_code(error)
        answer = ("error", pickle.dumps(pack_exception(error))) if code else ("result", pickle.dumps(None))
        if not is_skip(error) and not isinstance(error, SystemExit):
            sys.excepthook(type(error), error, error.__traceback__)
    finally:
        with contextlib.suppress(OSError):
            pipe.send_bytes(pickle.dumps(answer))
        end_as_interpreter(code)


_NO_AUTOGRAD = "autograd's threading in combination with fork"
"""A part of what torch says of a backward pass in a fork of a process whose autograd has threads for devices."""


def _advised(error: BaseException) -> BaseException:
    """The error; with what to do, where torch refuses a backward pass for what the parent has done before."""
    if not isinstance(error, RuntimeError) or _NO_AUTOGRAD not in str(error):
        return error
    advice = (
        f"{error}\nThe process of the test had made a backward pass with GPUs (or FakeTensorMode's) before it forked "
        "the ranks: run the test in a process of its own (pytest --forked), or with backend='threaded'."
    )
    return RuntimeError(advice).with_traceback(error.__traceback__)


def receive_answer(pipe: Connection) -> tuple[str, Any]:
    """The answer of :func:`become_rank`: its kind and value; ``nothing`` for a rank that died without one."""
    try:
        # From a process that this one has forked.
        kind, pickled = pickle.loads(pipe.recv_bytes())  # noqa: S301
        value = pickle.loads(pickled) if pickled else None  # noqa: S301
    except (EOFError, OSError):
        return "nothing", None
    return kind, value.unpack() if isinstance(value, SentException) else value


def _begin(rank: int, size: int, port: int, folder: Path, values: str | None) -> None:
    leave_parent()
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(size),
        LOCAL_WORLD_SIZE=str(size),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        TORCHELASTIC_USE_AGENT_STORE="True",
    )
    enable("detail", folder, values=values)


def _join(rank: int, size: int, port: int, timeout: float) -> None:
    store = dist.PrefixStore("ranks", dist.TCPStore("127.0.0.1", port, is_master=False))
    limit = timedelta(seconds=timeout)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=limit)
    # A rank that ended at once would take the connections with it that others still make.
    store.set(f"joined/{rank}", "")
    store.wait([f"joined/{one}" for one in range(size)], limit)


def _pickled(value: object, rank: int) -> bytes:
    try:
        return pickle.dumps(value)
    except Exception as error:
        kind = type(value).__name__
        raise TypeError(f"rank {rank} returned a {kind}, which cannot be sent to the test: {error}") from error
