"""A helper's line is shown with the callers that tell its call from the program's others, and with no more."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from simcoll.core.record import Group, Record, Source, State
from simcoll.spec.call import Buffer, Call
from simcoll.verifier.findings.describe import frames_shown
from simcoll.verifier.postmortem import judge
from tests.support.traces import trace_of

WORLD = Group("0", "default_pg", (0, 1, 2))


def shown(called_from: Sequence[int]) -> list[tuple[str, int]]:
    """The frames of the last call of a helper, where sizes differ; the module calls it from these lines."""

    def record(number: int, line: int, elements: int) -> Record:
        source = Source("train.py", 3, "average", "", callers=(Source("train.py", line, "<module>"),))
        tensor = (Buffer((elements,), "float32"),)
        call = Call("all_reduce", "allreduce", tensor, tensor, reduce_op="sum")
        return Record("0", number, call, source, State.COMPLETED, scheduled_ns=number, finished_ns=number)

    last = len(called_from)
    traces = [
        trace_of(
            rank, 3, [WORLD], [record(n, line, 4 + (rank == 1 and n == last)) for n, line in enumerate(called_from, 1)]
        )
        for rank in range(3)
    ]
    (finding,) = judge(traces).findings
    assert finding.code == "SC102"
    return [(one.how, one.frame.line) for one in frames_shown(finding.sides, finding.sides[0].sources[0].source)]


@pytest.mark.parametrize(
    ("called_from", "expected"),
    [([7, 8, 9], [("at", 3), ("from", 9)]), ([7, 7, 7], [("at", 3)]), ([7], [("at", 3)])],
)
def test_callers_are_shown_where_the_line_is_called_from_several(
    called_from: Sequence[int], expected: list[tuple[str, int]]
) -> None:
    assert shown(called_from) == expected
