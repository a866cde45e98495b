"""Scenarios played on simulated ranks: every op of the vocabulary, and the lines that records name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simcoll.core.trace import record_at
from simcoll.simulation.backends import Run, run_simulated
from simcoll.simulation.operations import VERBS, keys_of
from simcoll.simulation.player import exception_named, shapes_of
from simcoll.simulation.scenario import ScenarioStep
from simcoll.spec.call import Buffer, Call
from simcoll.spec.collectives import COLLECTIVES
from simcoll.spec.table import Kind
from tests.support.scenarios import parse_scenario


def run(text: str, **options: Any) -> Run:
    scenario = parse_scenario(text, "/some/where/s.toml")
    return run_simulated(scenario, None, **{"seed": 0, "sends": scenario.sends, **options})


def lines(found: Run) -> list[tuple[str, int, str]]:
    """File, line and function of every record, rank by rank."""
    records = [record_at(trace, row) for trace in found.traces for row in range(len(trace.slots))]
    return [(one.source.file, one.source.line, one.source.function) for one in records if one is not None]


def test_records_name_the_lines_of_the_file() -> None:
    found = run('ranks = 2\n\n[[calls]]\nname = "a sum"\nop = "all_reduce"\n[[calls]]\nop = "barrier"\n')
    assert lines(found) == 2 * [("/some/where/s.toml", 5, "a_sum"), ("/some/where/s.toml", 7, "barrier")]


def test_a_crash_names_the_line_of_the_fault() -> None:
    text = (
        'ranks = 2\n[[calls]]\nop = "barrier"\n[[faults]]\nkind = "crash"\nranks = 1\nat = 1\nexception = "OddError"\n'
    )
    found = run(text)
    [finding] = found.report.findings
    assert "OddError" in finding.message
    assert [source.source.line for side in finding.sides for source in side.sources] == [5]


@pytest.mark.parametrize(
    ("name", "base"), [("ValueError", ValueError), ("OddError", RuntimeError), ("exit", RuntimeError)]
)
def test_exceptions_by_name(name: str, base: type[Exception]) -> None:
    found = exception_named(name)
    assert found.__name__ == name
    assert issubclass(found, base)


COLLECTIVE = [name for name, verb in VERBS.items() if verb.spec.kind is not Kind.POINT_TO_POINT]


@pytest.mark.parametrize("op", COLLECTIVE)
@pytest.mark.parametrize("asynchronous", [False, True])
def test_every_collective_plays(op: str, asynchronous: bool) -> None:
    if asynchronous and "async" not in keys_of(op):
        pytest.skip(f"{op} has no asynchronous form")
    extra = 'async = true\n[[calls]]\nop = "wait"\n' if asynchronous else ""
    shape = "shape = [3, 2]\n" if "shape" in keys_of(op) else ""
    found = run(f'ranks = 3\n[[calls]]\nop = "{op}"\n{shape}{extra}[expect]\nfindings = []')
    assert found.report.findings == ()
    assert sorted(found.results) == [0, 1, 2]
    assert len(lines(found)) == 3


MESSAGES = """
ranks = 3
[[calls]]
op = "isend"
peer = "+1"
tag = 2
[[calls]]
op = "{receive}"
peer = {peer}
tag = 2
[[calls]]
op = "wait"
"""


@pytest.mark.parametrize("receive", ["recv", "irecv"])
@pytest.mark.parametrize("peer", ['"-1"', '"any"'])
def test_a_ring_of_messages(receive: str, peer: str) -> None:
    found = run(MESSAGES.format(receive=receive, peer=peer))
    assert found.report.findings == ()
    assert [found.results[rank][0].total for rank in range(3)] == [12, 4, 8]


def test_results_are_known() -> None:
    found = run('ranks = 3\n[[calls]]\nop = "reduce"\nroot = 1\nshape = 2\n[[calls]]\nop = "all_gather"\nshape = 2')
    assert [[one.total for one in found.results[rank]] for rank in range(3)] == [[12], [12, 12], [12]]


def test_overrides_make_uneven_splits() -> None:
    text = """
    ranks = 2
    [[calls]]
    op = "all_to_all_single"
    overrides = [
        { ranks = 0, shape = [3, 2], input_splits = [1, 2], output_splits = [1, 4] },
        { ranks = 1, shape = [9, 2], input_splits = [4, 5], output_splits = [2, 5] },
    ]
    [[calls]]
    op = "all_to_all"
    shape = [1, 2]
    overrides = [
        { ranks = 0, input_splits = [1, 2], output_splits = [1, 4] },
        { ranks = 1, input_splits = [4, 5], output_splits = [2, 5] },
    ]
    """
    found = run(text)
    assert found.report.findings == ()
    assert [one.total for one in found.results[0]] == 2 * [1 * 2 + 4 * 2 * 2]


def test_a_group_that_some_do_not_make() -> None:
    text = 'ranks = 2\n[[groups]]\nname = "g"\nranks = [0, 1]\nmade_by = 0\n[[calls]]\nop = "barrier"\ngroup = "g"\n'
    assert [finding.code for finding in run(text).report.findings] == ["SC401"]


def test_a_group_is_destroyed_and_made_again() -> None:
    text = """
    ranks = 2
    [[groups]]
    name = "g"
    ranks = [0, 1]
    [[calls]]
    op = "new_group"
    group = "g"
    [[calls]]
    op = "all_reduce"
    group = "g"
    [[calls]]
    op = "destroy_group"
    group = "g"
    [[calls]]
    op = "new_group"
    group = "g"
    [[calls]]
    op = "all_reduce"
    group = "g"
    """
    assert run(text).report.findings == ()


@pytest.mark.parametrize("order", ["[1, 0]", "[2, 0, 1]", '"channels_last"'])
def test_an_order_that_all_ranks_have_is_silent(order: str) -> None:
    shape = {"[1, 0]": [3, 2], "[2, 0, 1]": [2, 3, 4], '"channels_last"': [2, 3, 4, 5]}[order]
    found = run(f'ranks = 2\n[[calls]]\nop = "all_reduce"\nshape = {shape}\norder = {order}\n')
    assert found.report.findings == ()
    assert found.results[0][0].total == 3 * np.prod(shape)


@st.composite
def steps(draw: Callable[[Any], Any]) -> tuple[str, ScenarioStep, int]:
    op = draw(st.sampled_from(sorted(VERBS)))
    size = draw(st.integers(1, 5))
    shape = draw(st.lists(st.integers(0, 4), max_size=3).map(tuple))
    if len(VERBS[op].spec.divided) > 1:
        shape = (size * draw(st.integers(0, 3)), *shape[1:])
    return op, ScenarioStep(op, 1, shapes=(shape,), root=draw(st.integers(0, size - 1)), peer=0), size


@given(steps())
def test_the_shapes_of_any_call_obey_its_law(drawn: tuple[str, ScenarioStep, int]) -> None:
    """No call contradicts itself, and what rank i sends to rank j is what j expects from i."""
    op, step, size = drawn
    verb = VERBS[op]
    calls = []
    for rank in range(size):
        shapes = shapes_of(step, rank, size)
        buffers = {role: tuple(Buffer(shape, "float32") for shape in found) for role, found in shapes.items()}
        both = buffers.get("inout", ())
        message = verb.spec.kind is Kind.POINT_TO_POINT
        calls.append(
            Call(
                verb.spec.name,
                verb.method,
                buffers.get("inputs", both),
                buffers.get("outputs", both),
                root=step.root if "root" in verb.spec.agree else None,
                peer=0 if message else None,
                coalesced=verb.spelling.coalesced,
            )
        )
    assert [verb.spec.fault(call, rank, size) for rank, call in enumerate(calls)] == [None] * size
    flows = [verb.spec.flows(call, rank, size) for rank, call in enumerate(calls)]
    for one, mine in enumerate(flows):
        for other, theirs in enumerate(flows):
            if mine is not None and theirs is not None:
                assert mine.sends.get(other, 0) == theirs.receives.get(one, 0)


def test_every_function_of_the_table_is_a_verb_or_left_out_for_a_reason() -> None:
    left_out = {
        "all_gather_coalesced": "deprecated by torch",
        "all_gather_single": "2.13's name of all_gather_into_tensor",
        "reduce_scatter_single": "2.13's name of reduce_scatter_tensor",
    }
    functions = {name for spec in COLLECTIVES.values() for name in spec.functions}
    assert functions - set(VERBS) == set(left_out)
