"""A progress bar on a terminal, for work that takes more than a moment."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

_PATIENCE_SECONDS = 0.7


@contextmanager
def progress_bar(
    text: str = "reading", then: str = "judging", *, shown: bool = True
) -> Iterator[Callable[[int, int], None] | None]:
    """Take (done, total) and draw them on stderr after a moment; None where stderr is no terminal, or not ``shown``.

    When all is done it shows ``then``, the next step, as running.
    The bar goes away with the end of the block. NO_COLOR and dumb terminals are respected as rich does it.
    """
    console = Console(stderr=True)
    if not shown or not console.is_terminal or os.environ.get("TERM") in ("dumb", "unknown"):
        yield None
        return
    bar = _Bar(text, then, console)
    try:
        yield bar.update
    finally:
        bar.end()


@dataclass(slots=True)
class _Bar:
    text: str
    then: str
    console: Console
    _begin: float = field(default_factory=time.monotonic)
    _progress: Progress | None = None
    _task: TaskID | None = None

    def update(self, done: int, total: int) -> None:
        if self._progress is None:
            if time.monotonic() - self._begin < _PATIENCE_SECONDS or done == total:
                return
            self._progress = self._shown(total)
        if self._task is not None and done < total:
            self._progress.update(self._task, completed=done)
        elif self._task is not None:
            self._progress.update(self._task, description=self.then, total=None)

    def end(self) -> None:
        if self._progress is not None:
            self._progress.stop()

    def _shown(self, total: int) -> Progress:
        columns = (TextColumn("simcoll: {task.description}"), BarColumn(), MofNCompleteColumn())
        progress = Progress(*columns, TimeRemainingColumn(), console=self.console, transient=True)
        self._task = progress.add_task(self.text, total=total)
        progress.start()
        return progress
