"""Exceptions on their way from one process to another, with where they came from: frames do not travel.

What arrives has a traceback through the same lines of the same files, so that whoever shows it, pytest for one, shows
the program.
"""

from __future__ import annotations

import pickle
import sys
import traceback
from dataclasses import dataclass
from types import FrameType, TracebackType


@dataclass(frozen=True, slots=True)
class _Step:
    """One frame: the function, where it begins, the line that it had come to."""

    file: str
    function: str
    begins: int
    line: int


@dataclass(frozen=True, slots=True)
class SentException:
    """``pickled`` is None for an exception that cannot be pickled; ``text`` then says what it was.

    ``outcome`` is the function of pytest that raised it: what these raise cannot be pickled.
    """

    pickled: bytes | None
    text: str
    way: tuple[_Step, ...]
    outcome: str | None = None

    def arrived(self) -> BaseException:
        """The exception, or a RuntimeError in its place. To be used on what one's own process has sent alone."""
        kind = RuntimeError if self.outcome is None else _outcomes()[self.outcome]
        error: BaseException = kind(self.text) if self.pickled is None else pickle.loads(self.pickled)  # noqa: S301
        part: TracebackType | None = None
        for step in reversed(self.way):
            part = _traceback(step, part)
        return error.with_traceback(part)


def sent(error: BaseException) -> SentException:
    """An exception, to be pickled."""
    frames = list(traceback.walk_tb(error.__traceback__))
    way = tuple(
        _Step(frame.f_code.co_filename, frame.f_code.co_name, frame.f_code.co_firstlineno, line)
        for frame, line in frames
    )
    for outcome, kind in _outcomes().items():
        if type(error) is kind:
            return SentException(None, str(error), way, outcome)
    try:
        pickled = pickle.dumps(error)
        pickle.loads(pickled)  # noqa: S301  # one's own
    except Exception:
        return SentException(None, f"{type(error).__name__}: {error}", way)
    return SentException(pickled, "", way)


def _outcomes() -> dict[str, type[BaseException]]:
    """What pytest's functions raise to end a test, where pytest runs."""
    pytest = sys.modules.get("pytest")
    return {name: getattr(pytest, name).Exception for name in ("skip", "xfail", "fail")} if pytest else {}


def _traceback(step: _Step, following: TracebackType | None) -> TracebackType:
    """A frame that stands at a line of a file: a code object of that name runs there, and gives its own frame."""
    code = compile("\n" * max(step.line - step.begins, 0) + "frames.append(_getframe())", step.file, "exec")
    found: list[FrameType] = []
    exec(  # noqa: S102  # the line above
        code.replace(co_name=step.function, co_firstlineno=step.begins), {"frames": found, "_getframe": sys._getframe}
    )
    return TracebackType(following, found[0], found[0].f_lasti, max(step.line, 1))
