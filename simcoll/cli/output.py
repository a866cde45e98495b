"""The destinations of a command's output: reports on stdout, the rest on stderr, and with ``--json`` one document.

On a terminal a picture is as wide as that, elsewhere 80 columns, so that logs are the same everywhere; COLUMNS
overrides both. ``--plain`` is text without boxes, colours and characters beyond ASCII.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING

from simcoll.core.io import printable, write_whole
from simcoll.core.json_text import json_text
from simcoll.errors import StdoutError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from simcoll.core.trace import Trace
    from simcoll.reports.page_shell import Figure, PageTable
    from simcoll.verifier.findings.finding import Report

_NARROWEST = 20
"""Columns below which nothing can be read; a machine without a terminal may say that it has none."""

_WIDEST = 10_000
"""Columns beyond which a line of spaces alone takes much memory."""

_ELSEWHERE = 80
"""Columns where there is no terminal, and none are asked for."""

_LONGEST = 2_000
"""Characters of a line on stderr."""

_HEIGHT = 100
"""Given beside the width, or rich takes a width of its own on a terminal that calls itself dumb; nothing is paged."""


class Output:
    """The output of one command; with ``json`` stdout carries one JSON document and nothing else.

    ``plain`` asks for lines of ASCII in place of pictures, and for no progress bar; ``github`` for annotations of a
    workflow below each report.
    """

    def __init__(self, *, json: bool = False, plain: bool = False, github: bool = False) -> None:
        self.json = json
        self.plain = plain
        self.github = github
        # Characters that an encoding such as ASCII lacks are written as escapes.
        if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.errors in ("strict", "surrogateescape"):
            sys.stdout.reconfigure(errors="backslashreplace")

    def show(self, report: Report, *, speeds: bool = False) -> None:
        """Put a report on stdout, as a picture for people or as JSON; ``speeds``: with those of a clean job."""
        from simcoll.reports.terminal import TerminalReport

        self.render(TerminalReport(report, speeds), lambda: report_document(report))
        if self.github:
            from simcoll.reports.github import annotated

            workspace = os.environ.get("GITHUB_WORKSPACE") or str(Path.cwd())
            for line in annotated(report, workspace):
                self.hand_over(line)

    def say(self, report: Report, line: str) -> None:
        """Put one line on stdout in the report's place; with ``--json`` the report."""
        self.line(line, lambda: report_document(report))

    def line(self, text: str, document: Callable[[], object] | None = None) -> None:
        """Put one line on stdout; with ``--json`` the document, or nothing where there is none.

        It is folded on a terminal, and only there: what is piped is searched by line, and its paths are used.
        """
        if self.json:
            if document is not None:
                self.hand_over(json_text(document()))
            return
        from simcoll.core.text import plain

        shown = plain(text).plain
        shown = shown.encode("ascii", "backslashreplace").decode("ascii") if self.plain else shown
        self.hand_over(_folded(shown, columns()) if sys.stdout is not None and sys.stdout.isatty() else shown)

    def render(self, picture: RenderableType, document: Callable[[], object]) -> None:
        """Put a picture or a JSON document on stdout; raises :class:`StdoutError` and BrokenPipeError."""
        if self.json:
            self.hand_over(json_text(document()))
            return
        if self.plain:
            from simcoll.reports.tables import Linear

            picture = Linear(picture)
        self._put(picture, whole=False)

    def hand_over(self, text: str) -> None:
        """Put a text for programs on stdout as it is; raises as :meth:`render` does."""
        self._put(text, whole=True)

    def _put(self, said: RenderableType, *, whole: bool) -> None:
        """``whole``: it must not be broken into lines."""
        try:
            if whole:
                print(said)  # noqa: T201
            else:
                self._draw(said)
            # None where the process was started without one.
            if sys.stdout is not None:
                sys.stdout.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise StdoutError(f"cannot write to stdout: {error.strerror}") from error

    def _draw(self, said: RenderableType) -> None:
        """A picture; in a file or a pipe without the blanks by which its lines are filled up."""
        console = self._console()
        if console.is_terminal or sys.stdout is None:
            console.print(said)
            return
        with console.capture() as drawn:
            console.print(said)
        sys.stdout.write("\n".join(line.rstrip(" ") for line in drawn.get().split("\n")))

    def _console(self) -> Console:
        """A console that takes square brackets and colons literally: texts from traces are no markup."""
        from rich.console import Console

        if self.plain:
            return Console(
                width=columns(), height=_HEIGHT, markup=False, emoji=False, highlight=False, color_system=None
            )
        return Console(width=columns(), height=_HEIGHT, markup=False, emoji=False, highlight=False)

    def save(
        self,
        report: Report,
        folder: Path,
        traces: Sequence[Trace] = (),
        figures: Sequence[Figure] = (),
        tables: Sequence[PageTable] = (),
    ) -> None:
        """Write ``report.json`` and ``report.html`` into a folder, and print a line where there is something to read.

        The timeline is drawn from ``traces``; ``figures`` and ``tables`` are further parts of the page.
        A folder that cannot be written is a warning.
        """
        # Ranks, which write files too, do not need the modules that make pages.
        from simcoll.blackbox.format import SUFFIX
        from simcoll.reports.html_report import html_report
        from simcoll.verifier.views.requested import charted

        try:
            write_whole(folder / "report.json", json_text(report_document(report)) + "\n")
            write_whole(folder / "report.html", html_report(report, charted(report, traces), figures, tables))
        except OSError as error:
            self.warn(f"cannot write the report into {folder}: {error.strerror}")
            return
        if report.findings:
            records = ["the records of the ranks"] if any(folder.glob(f"*{SUFFIX}")) else []
            *files, last = ["report.html", "report.json", *records]
            self.warn(f"{', '.join(files)} and {last} are in {folder}")

    def warn(self, text: str) -> None:
        """One line on stderr."""
        warn(text)

    def refuse(self, code: int, text: str) -> int:
        """Print the reason why nothing was done, in one line; returns the exit code."""
        self.warn(text)
        if self.json:
            self.hand_over(json.dumps({"schema": "simcoll.error/1", "error": text, "exit_code": code}))
        return code


def report_document(report: Report) -> dict[str, object]:
    """The report as JSON has it."""
    from simcoll.reports.json_report import json_report

    return json_report(report)


def warn(text: str) -> None:
    """One line on stderr, whatever the text holds; one that cannot be written is no reason to end.

    On a terminal it is folded between words, and only there: logs are searched by line.
    """
    line = f"simcoll: {_bounded(printable(text))}"
    with contextlib.suppress(OSError):
        if sys.stderr is not None and sys.stderr.isatty():
            line = _folded(line, max(shutil.get_terminal_size().columns, _NARROWEST))
        print(line, file=sys.stderr, flush=True)  # noqa: T201


def _folded(line: str, width: int) -> str:
    """A line in several for a terminal. Long words such as paths are not broken, so that they can be copied."""
    lines = textwrap.wrap(line, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines)


def _bounded(text: str) -> str:
    """Shortens a long text to its two ends: an error about a path that is too long ends with the reason."""
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]} ... {text[-_LONGEST // 2 :]}"


def columns() -> int:
    """Returns the width of pictures on stdout, in columns."""
    asked = os.environ.get("COLUMNS", "")
    if asked.isascii() and asked.isdecimal() and int(asked):
        return min(max(int(asked), _NARROWEST), _WIDEST)
    on_terminal = sys.stdout is not None and sys.stdout.isatty()
    return max(shutil.get_terminal_size().columns if on_terminal else _ELSEWHERE, _NARROWEST)
