"""A rank whose next call stands in a handler or a ``finally`` parted from the others where the exception was raised."""

from __future__ import annotations

import pytest

from simcoll.core.record import Event, Group
from simcoll.spec.call import Call
from simcoll.verifier.findings.finding import Finding, Severity, Side
from simcoll.verifier.program_text.parting_exceptions import with_partings_of_exceptions
from tests.support.traces import trace_of

WORLD = Group("0", "default_pg", (0, 1, 2))
SUM, BARRIER = Call("all_reduce", "allreduce"), Call("barrier", "barrier")


def handling(sequence: int, kind: str = "IndexError", *, group: str = "0", line: int = 9) -> Event:
    source = ["train.py", line, "epoch", "values[step]"]
    data = {"group": group, "sequence": sequence, "type": kind, "message": "out of range\nor so", "source": source}
    return Event("handling", sequence, data)


def judged(*events: Event, everyone: bool = False, code: str = "SC101", call: Call | None = BARRIER) -> Finding:
    """Rank 1 made another call, or none, where the others made the third; the events are its own, or everyone's."""
    sides = Side((0, 2), SUM), Side((1,), call)
    finding = Finding(code, Severity.ERROR, "", WORLD, 3, ranks=(0, 1, 2), sides=sides)
    traces = [trace_of(rank, 3, [WORLD], [], events=events if everyone or rank == 1 else []) for rank in range(3)]
    return with_partings_of_exceptions([finding], traces)[0]


def test_the_line_that_raised_is_where_they_parted() -> None:
    found = judged(handling(3))
    assert found.parted is not None
    assert (found.parted.source.file, found.parted.source.line) == ("train.py", 9)
    assert found.parted.sides == (((1,), "raised IndexError there"), ((0, 2), "did not"))
    assert found.sides[1].note == "while IndexError: out of range was handled"


def test_the_next_call_of_a_rank_that_made_none_tells_too() -> None:
    assert judged(handling(4), code="SC202", call=None).parted is not None
    assert judged(handling(4), code="SC202").parted is None


@pytest.mark.parametrize(
    "event",
    [handling(2), handling(30), handling(3, group="1"), handling(3, "CollectiveMismatchError"), handling(3, line=0)],
    ids=["an earlier call", "a call long after", "another group", "simcoll's own", "no line"],
)
def test_other_exceptions_part_nobody(event: Event) -> None:
    if event.data["source"][1] == 0:  # type: ignore[index]
        event.data["source"] = ["", 0, "", ""]
    assert judged(event, call=None).parted is None


def test_what_all_ranks_handle_parts_nobody() -> None:
    assert judged(handling(3), everyone=True).parted is None
    assert judged(handling(3), code="SC501").parted is None
