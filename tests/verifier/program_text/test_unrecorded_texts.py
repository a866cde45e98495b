"""Lines that were recorded without their text get it from the program at hand, if it is what the ranks ran."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from simcoll.core.record import Group, Record, Source, State
from simcoll.spec.call import Buffer, Call
from simcoll.verifier.findings.finding import Finding, RankSource, Severity, Side
from simcoll.verifier.program_text.unrecorded_texts import with_texts
from tests.support.traces import trace_of

PROGRAM = """\
def mean(x):
    dist.all_reduce(x)


def step(x):
    loss = 1
    mean(x)


step(x)
"""
TENSORS = (Buffer((4,), "float32"),)
SUM = Call("all_reduce", "allreduce", TENSORS, TENSORS, reduce_op="sum")
GROUP = Group("0", "default_pg", (0, 1))
BEGAN = 10**18


def texts(file: Path, *places: tuple[int, str], age_ns: int = 1) -> list[str]:
    """The texts of a stack's lines, given as numbers and functions from the innermost on."""
    os.utime(file, ns=(BEGAN - age_ns, BEGAN - age_ns))
    first, *callers = (Source(str(file), line, function) for line, function in places)
    source = replace(first, callers=tuple(callers))
    record = Record("0", 1, SUM, source, state=State.COMPLETED, scheduled_ns=BEGAN)
    trace = trace_of(0, 2, [GROUP], [record])
    finding = Finding("SC102", Severity.ERROR, "", sides=(Side((0,), SUM, (RankSource(0, source),)),))
    (told,) = with_texts([finding], [trace])
    return [frame.code for frame in told.sides[0].sources[0].source.stack]


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(PROGRAM)
    return path


def test_a_program_older_than_the_job_has_the_texts(program: Path) -> None:
    found = texts(program, (2, "mean"), (7, "step"), (10, "<module>"))
    assert found == ["dist.all_reduce(x)", "mean(x)", "step(x)"]


@pytest.mark.parametrize("place", [(2, "sum"), (1, "mean"), (4, "mean"), (10, "step"), (2, "<module>"), (99, "step")])
def test_a_frame_that_does_not_fit_shows_another_program(program: Path, place: tuple[int, str]) -> None:
    assert texts(program, (2, "mean"), place) == ["", ""]


def test_a_program_that_was_written_since_is_another(program: Path) -> None:
    assert texts(program, (2, "mean"), age_ns=-1) == [""]


def test_a_file_that_is_gone_or_no_program_has_none(program: Path) -> None:
    program.write_text("(")
    assert texts(program, (1, "<module>")) == [""]
