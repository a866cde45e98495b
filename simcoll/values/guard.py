"""Keeps errors of the checks of values away from the program that is checked."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from typing import Protocol, TypeVar

from simcoll.core.io import printable
from simcoll.values.choice import Choice

_Result = TypeVar("_Result")

_LONGEST = 2000
"""Characters of a message."""


class EventBox(Protocol):
    """Where a rank writes down what is not a call."""

    def event(self, kind: str, **data: object) -> None:
        """Write an event."""
        ...


class Guard:
    """Runs checks of one rank. After the first that raises none is made: its counts of calls or steps may be wrong."""

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
        """The result of a check; None where it fails, or an earlier one has."""
        if self._choice.stopped:
            return None
        try:
            return check()
        except Exception as error:
            # Whatever a check may raise, a program that runs without it runs with it.
            self._choice.stop()
            self._tell(error)
            return None

    def _tell(self, error: Exception) -> None:
        text = "".join(traceback.format_exception_only(error)).strip()[:_LONGEST]
        if (box := self._box()) is not None:
            box.event("unchecked", of=self._of, type=type(error).__name__, message=text)
        sys.stderr.write(f"simcoll: values are not checked any more on this rank: {printable(text)}\n")
