"""The exception that a test raises for the run of its ranks: the first failure itself, or the findings."""

from __future__ import annotations

import os
import warnings
from io import StringIO
from types import TracebackType
from typing import Any

from rich.console import Console

import simcoll
from simcoll import backends
from simcoll.backends.engine.outcome import Outcome
from simcoll.backends.engine.parking import StuckError
from simcoll.backends.engine.tickets import RefusedCallError, RefusedPeerError, is_skip, was_ended_by_others
from simcoll.errors import CollectiveMismatchError
from simcoll.reports.terminal import TerminalReport, summary_line
from simcoll.verifier.findings.finding import Finding, Report, errors_of
from simcoll.verifier.findings.rules import RANK_FAILED, RULES
from simcoll.verifier.values.unchecked import unchecked_notes

_WIDTH = 100
_OWN_ERRORS = (CollectiveMismatchError, RefusedCallError, RefusedPeerError, StuckError)
"""Exceptions of ranks that say less than the report."""

_FOLDERS = tuple(os.path.dirname(os.path.abspath(str(package.__file__))) + os.sep for package in (simcoll, backends))


class FindingsError(AssertionError):
    """The ranks disagree, or wait for each other forever; the text is the report.

    ``outcome`` is the whole run, ``report`` the verdict on it, ``findings`` its findings, causes first.
    """

    def __init__(self, text: str, outcome: Outcome[Any]) -> None:
        super().__init__(text)
        self.outcome = outcome

    @property
    def report(self) -> Report:
        """The verdict."""
        return self.outcome.report

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings, causes first."""
        return self.outcome.findings


class UncheckedWarning(UserWarning):
    """Values that a run was asked to check were not checked to its end."""


UncheckedWarning.__module__ = "simcoll.testing"
FindingsError.__module__ = "simcoll.testing"  # where users find it


def error_of(outcome: Outcome[Any], *, fail_on: str = "warning", brief: bool = False) -> BaseException | None:
    """The exception that fails a run, or None; ``brief`` gives it a short text, where the report is shown besides."""
    failed = {rank: error for rank, error in outcome.exceptions.items() if not was_ended_by_others(error)}
    skips = {rank: error for rank, error in failed.items() if is_skip(error)}
    if skips and skips == failed:
        return _from_program(skips[min(skips)])
    wrong = [*outcome.findings] if fail_on == "warning" else errors_of(outcome.findings)
    program = {rank: error for rank, error in failed.items() if not isinstance(error, _OWN_ERRORS)}
    first = next((rank for one in wrong[:1] if one.code == RANK_FAILED.code for rank in one.ranks), None)
    if program and (first is not None or not wrong):
        rank = first if first in program else min(program)
        return _with_note(_from_program(program[rank]), f"rank {rank} of {outcome.report.world_size}")
    if not wrong and not outcome.exceptions:
        return None
    error = FindingsError(_headline(outcome, wrong) if brief else report_text(outcome.report), outcome)
    concerned = [rank for one in wrong for rank in (*one.culprits, *one.ranks)] + list(outcome.exceptions)
    cause = next((outcome.exceptions[rank] for rank in concerned if rank in outcome.exceptions), None)
    if cause is None:
        return error
    if isinstance(cause, _OWN_ERRORS) or was_ended_by_others(cause):
        # It says less than the report, but its traceback has the line of the program.
        return error.with_traceback(_program_frames(cause.__traceback__))
    error.__cause__ = _from_program(cause)
    return error


def report_text(report: Report, *, width: int = _WIDTH, colour: bool = False) -> str:
    """The report as ``simcoll run`` shows it, with this width, with or without colour."""
    stream = StringIO()
    console = Console(
        file=stream,
        width=width,
        force_terminal=colour,
        color_system="standard" if colour else None,
        highlight=False,
        markup=False,
        emoji=False,
        no_color=not colour,
    )
    console.print(TerminalReport(report))
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines()).rstrip()


def warn_of_unchecked(outcome: Outcome[Any]) -> None:
    """Warn once of each reason for which values were not checked to the end."""
    for note in unchecked_notes(outcome.traces):
        warnings.warn(note, UncheckedWarning, stacklevel=3)


def _headline(outcome: Outcome[Any], wrong: list[Finding]) -> str:
    lines = [f"{one.code} {RULES[one.code].name}: {one.message}" for one in wrong]
    return "\n".join(lines or [summary_line(outcome.report)])


def _with_note(error: BaseException, note: str) -> BaseException:
    """Add a note to an exception, where Python has notes (3.11 and newer)."""
    if hasattr(error, "add_note") and note not in getattr(error, "__notes__", ()):
        error.add_note(note)
    return error


def _from_program(error: BaseException) -> BaseException:
    """Start the traceback of an exception at the program: without the frames of simcoll that called it."""
    part = error.__traceback__
    while part is not None and _is_own(part):
        part = part.tb_next
    return error if part is None else error.with_traceback(part)


def _program_frames(whole: TracebackType | None) -> TracebackType | None:
    """A traceback without simcoll's frames around the program, on both ends."""
    frames = []
    while whole is not None:
        frames.append(whole)
        whole = whole.tb_next
    users = [place for place, frame in enumerate(frames) if not _is_own(frame)]
    part: TracebackType | None = None
    for frame in reversed(frames[users[0] : users[-1] + 1] if users else ()):
        part = TracebackType(part, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return part


def _is_own(frame: TracebackType) -> bool:
    return os.path.abspath(frame.tb_frame.f_code.co_filename).startswith(_FOLDERS)
