"""A call's fields as a report shows them: what differs is marked, and what does not is not."""

from __future__ import annotations

import pytest

from simcoll.core.record import Group
from simcoll.spec.call import Buffer, Call
from simcoll.verifier.findings.describe import fields_of, marked_in
from simcoll.verifier.findings.finding import Finding, Severity, Side

PAIR = Group("0", "default_pg", (0, 1))
SMALL, LARGE, HALVES = Buffer((1, 4), "float32"), Buffer((4, 8), "float32"), Buffer((4, 8), "bfloat16")


def finding(differing: str, *calls: Call) -> Finding:
    sides = tuple(Side((rank,), call) for rank, call in enumerate(calls))
    return Finding("SC110", Severity.ERROR, "m", PAIR, 1, (0, 1), sides=sides, differing=(differing,))


def coalesced(*buffers: Buffer) -> Call:
    return Call("all_reduce", "allreduce_coalesced", buffers, buffers, reduce_op="sum", coalesced=True)


@pytest.mark.parametrize(
    ("one", "other", "marked"),
    [
        ((SMALL, LARGE), (LARGE, SMALL), {"shape"}),
        ((SMALL, LARGE), (SMALL, HALVES), {"dtype"}),
        ((SMALL, LARGE), (HALVES, SMALL), {"dtype", "shape"}),
        ((SMALL, LARGE), (SMALL,), {"dtype", "shape"}),
    ],
)
def test_of_coalesced_tensors_what_differs_is_marked(
    one: tuple[Buffer, ...], other: tuple[Buffer, ...], marked: set[str]
) -> None:
    found = finding("contents", coalesced(*one), coalesced(*other))
    for side in found.sides:
        assert side.call is not None
        fields = fields_of(side.call, PAIR, marked_in(found))
        assert {field.name for field in fields if field.differs} == marked


def test_a_tag_of_zero_is_shown_where_tags_differ() -> None:
    send = Call("send", "send", (SMALL,), (), peer=1, tag=0)
    assert "tag" not in {field.name for field in fields_of(send, PAIR, ())}
    assert [(field.name, field.value) for field in fields_of(send, PAIR, ("tag",)) if field.differs] == [("tag", "0")]


def test_a_memory_order_that_has_a_name_is_named() -> None:
    orders = ((0, 2, 3, 1), (0, 2, 3, 4, 1), (1, 0))
    calls = [Call("all_reduce", "allreduce", (Buffer((2,) * len(order), "float32", order=order),)) for order in orders]
    said = [
        field.value for call in calls for field in fields_of(call, PAIR, ("order",)) if field.name == "memory order"
    ]
    assert said == ["[0, 2, 3, 1] (channels_last)", "[0, 2, 3, 4, 1] (channels_last_3d)", "[1, 0]"]
