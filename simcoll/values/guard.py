"""Keeps errors of the checks of values away from the program that is checked."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Protocol, TypeVar

from simcoll.core.io import printable
from simcoll.core.source_roots import own_roots
from simcoll.values.choice import Choice

_Result = TypeVar("_Result")

_LONGEST = 2000
"""Characters of a message."""

_RAISED_BY_CHECKS = frozenset({*sys.stdlib_module_names, "numpy", "simcoll", "torch"})
"""Packages whose exceptions a check may raise by itself."""


CHECKED = {"calls": "values of collectives", "steps": "weights, batches and random numbers"}
"""What is not checked any more on a rank, by what its checks are of."""


class EventBox(Protocol):
    """Where a rank writes down what is not a call."""

    def event(self, kind: str, **data: object) -> None:
        """Write an event."""
        ...


class Guard:
    """Runs checks of one rank. After the first that raises none is made: its counts of calls or steps may be wrong.

    An exception of the program that comes up in a check, as by its signal handler, is raised to the program.
    """

    def __init__(self, choice: Choice, box: Callable[[], EventBox | None], of: str) -> None:
        """``choice`` takes nothing from the first error on, which is written to the ``box``; ``of`` says of what the
        checks are: of ``calls``, or of ``steps``.
        """
        self._of = of
        self._choice = choice
        self._box = box

    def count(self, check: Callable[[], _Result]) -> _Result | None:
        """Run a check of what was chosen, whose time counts."""
        with self._choice.counted():
            return self.run(check)

    def run(self, check: Callable[[], _Result]) -> _Result | None:
        """The result of a check; None where it fails, or an earlier one has. Raises what is the program's own."""
        if self._choice.stopped:
            return None
        try:
            return check()
        except Exception as error:
            # Whatever a check may raise, a program that runs without it runs with it.
            self._choice.stop()
            interrupted = is_of_program(error)
            self._tell(error, interrupted=interrupted)
            if interrupted:
                raise
            return None

    def _tell(self, error: Exception, *, interrupted: bool) -> None:
        text = "".join(traceback.format_exception_only(error)).strip()[:_LONGEST]
        if (box := self._box()) is not None:
            box.event("unchecked", of=self._of, type=type(error).__name__, message=text, interrupted=interrupted)
        sys.stderr.write(f"simcoll: {CHECKED[self._of]} are not checked any more on this rank: {printable(text)}\n")


def is_of_program(error: Exception) -> bool:
    """True for an exception that reached a check from outside: a handler of signals has raised it, or another thread
    has set it (``PyThreadState_SetAsyncExc``), which shows by a class that no check raises.

    What else runs the program's code in a check, such as a mapping of its own, would not have run without the check.
    """
    frames = [*_frames(error.__traceback__)]
    foreign = [not own_roots().is_torch_or_simcoll(frame.f_code.co_filename) for frame in frames]
    handles = (
        other and _is_given(frame, caller)
        for caller, frame, other in zip(frames, frames[1:], foreign[1:], strict=False)
    )
    package = type(error).__module__.partition(".")[0]
    return any(handles) or (package not in _RAISED_BY_CHECKS and not any(foreign))


def _frames(traceback: TracebackType | None) -> Iterator[FrameType]:
    while traceback is not None:
        yield traceback.tb_frame
        traceback = traceback.tb_next


def _is_given(frame: FrameType, caller: FrameType) -> bool:
    """True if a function has its caller's frame, as a handler of signals is given the frame that it interrupts."""
    held = [*frame.f_locals.values()]
    held += [one for value in held if type(value) is tuple for one in value]
    return any(one is caller for one in held)
