"""The one-word check: never raises, is the same everywhere, and is zero in sum only for what agrees."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simcoll.spec.call import Buffer, Call
from simcoll.spec.checksum import digest_word, flow_word, positioned, word
from simcoll.spec.collectives import METHODS

shapes = st.lists(st.integers(0, 5), max_size=3).map(tuple)
buffers = st.lists(st.builds(Buffer, shape=shapes, dtype=st.sampled_from(["float32", "int8"])), max_size=5).map(tuple)
numbers = st.none() | st.integers(-3, 9)
splits = st.none() | st.lists(st.integers(-(2**63), 2**63), max_size=6).map(tuple)


@st.composite
def calls(draw: st.DrawFn) -> Call:
    """Whatever a program may pass, sense or not."""
    spelling = draw(st.sampled_from(sorted(METHODS)))
    spec, method = METHODS[spelling]
    return Call(
        spec.name,
        spelling,
        draw(buffers),
        draw(buffers),
        reduce_op=draw(st.none() | st.sampled_from(["sum", "max", "odd"])),
        root=draw(numbers),
        input_splits=draw(splits),
        output_splits=draw(splits),
        peer=draw(numbers),
        tag=draw(numbers),
        coalesced=method.coalesced,
    )


@pytest.mark.slow
@given(calls(), st.integers(1, 5), st.data())
def test_no_call_makes_the_word_raise(call: Call, size: int, data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, size - 1))
    value = word(call, rank, size)
    assert 0 <= value < 2**64
    assert value == word(call, rank, size)
    spec = METHODS[call.spelling][0]
    assert isinstance(spec.fault(call, rank, size), str | None)


@pytest.mark.slow
def test_the_word_is_the_same_in_every_process() -> None:
    code = (
        "from simcoll.spec.call import Buffer, Call; from simcoll.spec.checksum import word;"
        "b = (Buffer((2, 3), 'float32'),);"
        "print(word(Call('all_gather', 'allgather', b, b + (Buffer((1,), 'float32'),)), 1, 2))"
    )
    seen = {
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": seed}
        ).stdout
        for seed in ("1", "2")
    }
    assert len(seen) == 1


@pytest.mark.slow
@given(st.lists(st.integers(0, 3), min_size=1, max_size=6))
def test_digests_cancel_exactly_when_all_are_equal(digests: list[int]) -> None:
    total = sum(digest_word(digest, rank, len(digests)) for rank, digest in enumerate(digests))
    assert (total % 2**64 == 0) == (len(set(digests)) == 1)


def test_an_empty_flow_is_no_flow() -> None:
    from simcoll.spec.flows import Flows

    assert flow_word(Flows({1: 0}, {2: 0}), 0) == flow_word(Flows({}, {}), 0) == flow_word(None, 0) == 0


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**40))
def test_a_position_keeps_zero_and_nothing_else(value: int, sequence: int) -> None:
    assert (positioned(value, sequence) == 0) == (value == 0)


def test_two_positions_of_one_call_differ() -> None:
    assert positioned(5, 1) != positioned(5, 2)


def test_ops_the_table_does_not_have_are_named() -> None:
    with pytest.raises(KeyError, match="all_shuffle"):
        word(Call("all_shuffle", "allshuffle"), 0, 2)
