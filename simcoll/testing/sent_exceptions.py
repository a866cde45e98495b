"""Exceptions that are sent from one process to another with their tracebacks, since frames cannot be pickled.

The unpacked exception has a traceback through the same lines of the same files, so that pytest, for instance, shows the
program.
"""

from __future__ import annotations

import pickle
import sys
import traceback
from dataclasses import dataclass
from types import FrameType, TracebackType


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
