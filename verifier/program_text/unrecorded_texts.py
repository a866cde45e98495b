"""Finds the text of lines that were recorded without it, as in Flight Recorder dumps, where the program is at hand.

A file counts as what the ranks ran if it is older than the job, and if each frame of the stack that lies in it fits:
the line is in a function of the frame's name, and makes a call. Otherwise nothing is said of its text.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace

from simcoll.core.record import Source
from simcoll.core.trace import Trace
from simcoll.verifier.findings.finding import Finding, RankSource, Side
from simcoll.verifier.program_text.syntax import steps_to, text_of


def with_texts(findings: Sequence[Finding], traces: Sequence[Trace]) -> tuple[Finding, ...]:
    """The findings, with the text of their lines as far as it is known to be what the ranks ran."""
    if not any(map(_lacks_text, findings)):
        return tuple(findings)
    began = min((first for trace in traces if (first := _began(trace))), default=0)
    return tuple(_with_texts(one, began) if began and _lacks_text(one) else one for one in findings)


def _began(trace: Trace) -> int:
    """The time of a rank's first call that has one (wall clock, ns); 0 where none has."""
    times = trace.slots["scheduled_ns"]
    known = times[times > 0]
    return int(known.min()) if len(known) else 0


def _lacks_text(finding: Finding) -> bool:
    return any(_bare(stated.source) for side in _sides(finding) for stated in side.sources)


def _sides(finding: Finding) -> Iterable[Side]:
    return (*finding.sides, *(finding.came_apart.sides if finding.came_apart is not None else ()))


def _bare(source: Source) -> bool:
    return any(frame.file and not frame.code for frame in source.stack)


def _with_texts(finding: Finding, began: int) -> Finding:
    apart = finding.came_apart
    if apart is not None:
        apart = replace(apart, sides=tuple(_of_side(side, began) for side in apart.sides))
    return replace(finding, sides=tuple(_of_side(side, began) for side in finding.sides), came_apart=apart)


def _of_side(side: Side, began: int) -> Side:
    sources = tuple(RankSource(stated.rank, _of_stack(stated.source, began)) for stated in side.sources)
    return replace(side, sources=sources, stood=_of_stack(side.stood, began))


def _of_stack(source: Source, began: int) -> Source:
    """A line and the frames around it; of a file that does not fit one of them, none has its text."""
    misfits = {frame.file for frame in source.stack if not frame.code and not _text_at(frame, began)}

    def told(frame: Source) -> Source:
        return frame if frame.code or frame.file in misfits else replace(frame, code=_text_at(frame, began))

    callers, through = (tuple(map(told, frames)) for frames in (source.callers, source.through))
    return replace(told(source), callers=callers, through=through)


def _text_at(frame: Source, began: int) -> str:
    """The text of a frame's line; empty where the file is younger than the job, or its text does not fit the frame."""
    with suppress(OSError, ValueError):
        text = text_of(frame.file) if frame.file and os.stat(frame.file).st_mtime_ns < began else None
        function = None if text is None else text.function(frame.function, frame.line)
        steps = [] if function is None else steps_to(function, frame.line)
        named = text is not None and (_is_nameless(frame) or text.name_at(frame.line) == frame.function)
        if text is not None and named and steps and any(isinstance(n, ast.Call) for n in ast.walk(steps[-1].statement)):
            return text.line(frame.line)
    return ""


def _is_nameless(frame: Source) -> bool:
    """True for a lambda or a comprehension."""
    return frame.function.startswith("<") and frame.function != "<module>"
