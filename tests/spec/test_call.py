"""A call's JSON form goes there and back, and nothing else is taken for one."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simcoll.spec.call import Buffer, Call, MalformedCallError

integers = st.integers(-(2**40), 2**40)
tuples = st.lists(integers, max_size=4).map(tuple)
buffers = st.builds(
    Buffer,
    shape=tuples,
    dtype=st.sampled_from(["float32", "bfloat16", "bool"]),
    device=st.sampled_from(["cpu", "cuda"]),
    index=st.none() | integers,
    order=st.none() | tuples,
)
calls = st.builds(
    Call,
    op=st.text(max_size=9),
    spelling=st.text(max_size=9),
    inputs=st.lists(buffers, max_size=3).map(tuple),
    outputs=st.lists(buffers, max_size=3).map(tuple),
    reduce_op=st.none() | st.text(max_size=5),
    root=st.none() | integers,
    input_splits=st.none() | tuples.filter(bool),
    output_splits=st.none() | tuples.filter(bool),
    peer=st.none() | integers,
    tag=st.none() | integers,
    coalesced=st.booleans(),
)


@pytest.mark.slow
@given(calls)
def test_a_call_survives_json(call: Call) -> None:
    assert Call.from_json(json.loads(json.dumps(call.to_json()))) == call


scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
fields = st.sampled_from(
    ["op", "spelling", "inputs", "outputs", "reduce_op", "root", "input_splits", "tag", "coalesced"]
)
anything = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(fields | st.text(), inner, max_size=5),
    max_leaves=20,
)


@pytest.mark.slow
@given(anything | st.dictionaries(fields, anything))
def test_anything_else_is_read_or_refused(document: object) -> None:
    with contextlib.suppress(MalformedCallError):
        assert isinstance(hash(Call.from_json(document)), int)


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ([], "a call is an object"),
        ({"op": "barrier"}, "states op and spelling"),
        ({"op": 1, "spelling": "x"}, "op is text"),
        ({"op": "x", "spelling": "x", "root": True}, "root is an integer"),
        ({"op": "x", "spelling": "x", "inputs": {}}, "a list of buffers"),
        ({"op": "x", "spelling": "x", "inputs": [[]]}, "list of five values"),
        ({"op": "x", "spelling": "x", "inputs": [[None, "f", "cpu", None, None]]}, "shape is a list"),
        ({"op": "send", "spelling": "send", "peer": 1 << 62}, "peer is an integer"),
        ({"op": "send", "spelling": "send", "tag": -(10**30)}, "tag is an integer"),
        ({"op": "x", "spelling": "x", "inputs": [[[1], 2, "cpu", None, None]]}, "states dtype, device"),
        ({"op": "x", "spelling": "x", "input_splits": ["1"]}, "a list of integers"),
    ],
)
def test_a_malformed_call_is_refused_with_what_was_expected(document: object, text: str) -> None:
    with pytest.raises(MalformedCallError, match=text):
        Call.from_json(document)


def test_a_buffer_counts_and_squeezes() -> None:
    assert Buffer((2, 1, 3), "float32").elements == 6
    assert Buffer((2, 1, 3), "float32").squeezed == (2, 3)
    assert Buffer((), "float32").elements == 1
    assert Buffer((0, 3), "float32").elements == 0
