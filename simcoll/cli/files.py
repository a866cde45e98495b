"""The files that a command writes beside its output; one that cannot be written is a UsageError of one line."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from simcoll.cli.output import warn
from simcoll.core.io import write_whole
from simcoll.errors import UsageError

if TYPE_CHECKING:
    from simcoll.core.trace import Trace
    from simcoll.reports.trace_event import TraceEvents
    from simcoll.verifier.findings.finding import Finding, Report


def write_file(path: Path, text: str) -> None:
    """Write a text whole or not at all; raises UsageError."""
    try:
        write_whole(path, text)
    except OSError as error:
        raise _unwritable(path, error) from None


def check_writable(path: Path) -> None:
    """Raise UsageError where a file could not be written: for a command that works for minutes before it writes."""
    try:
        if os.path.isdir(path):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise _unwritable(path, error) from None


def sarif_text(report: Report, code: int, sources: Path) -> str:
    """All findings as SARIF; ``code`` is the command's exit code, and files are named relative to ``sources``."""
    from simcoll.core.json_text import json_text
    from simcoll.reports.sarif import sarif_report

    return json_text(sarif_report(report, code, sources)) + "\n"


def write_recorded_timeline(path: Path, traces: Sequence[Trace], findings: Sequence[Finding]) -> None:
    """Write the ranks' records, and the findings, as a trace-event file; raises UsageError."""
    from simcoll.pricing.views.recorded_trace import recorded

    timeline = recorded(traces, findings=findings)
    write_timeline(path, timeline)
    if timeline.note:
        warn(timeline.note)


def write_timeline(path: Path, timeline: TraceEvents) -> None:
    """Write a trace-event file, which Perfetto opens; raises UsageError."""
    from simcoll.reports.trace_event import write_trace_events

    try:
        write_trace_events(path, timeline)
    except OSError as error:
        raise _unwritable(path, error) from None


def _unwritable(path: Path, error: OSError) -> UsageError:
    return UsageError(f"cannot write {path}: {error.strerror}; choose another file")
