"""One rank's list of steps: loops, overrides, groups, and each kind of fault as a rewriting of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simcoll.simulation.keys import KINDS
from simcoll.simulation.rank_steps import REWRITES, steps_of
from tests.support.scenarios import parse_scenario

THREE = """
ranks = 3
[[calls]]
name = "a"
op = "all_reduce"
[[calls]]
repeat = 2
[[calls.calls]]
name = "b"
op = "broadcast"
[[calls.calls]]
ranks = [1, 2]
name = "c"
op = "compute"
seconds = 1
"""


def names(text: str, rank: int) -> str:
    return " ".join(step.name or step.op for step in steps_of(parse_scenario(text), rank))


def faulty(kind: str, **keys: object) -> str:
    stated = {"ranks": 1, **keys}
    return THREE + f"[[faults]]\nkind = '{kind}'\n" + "".join(f"{key} = {value!r}\n" for key, value in stated.items())


def test_loops_are_unrolled_for_who_plays_them() -> None:
    assert [names(THREE, rank) for rank in range(3)] == ["a b b", "a b c b c", "a b c b c"]


CASES = {
    "crash": ("a crash", {"at": 2}),
    "exit": ("a b exit", {"call": "c", "iteration": 1}),
    "hang": ("a b c hang", {"call": "b", "iteration": 2}),
    "skip": ("a c c", {"call": "b"}),
    "extra": ("a b b c b c", {"call": "broadcast", "iteration": 1}),
    "swap": ("b a c b c", {"call": "a"}),
    "slow-rank": ("a compute b c compute b c", {"call": "b", "seconds": 2}),
    "nan-input": ("a b c b c", {"call": "a"}),
    "bad-result": ("a b c b c", {"call": "a"}),
}


@pytest.mark.parametrize("kind", CASES)
def test_a_fault_rewrites_the_list(kind: str) -> None:
    after, where = CASES[kind]
    text = faulty(kind, **where)
    found = [step.op if step.op == kind or not step.name else step.name for step in steps_of(parse_scenario(text), 1)]
    assert " ".join(found) == after
    assert names(text, 2) == "a b c b c"


@pytest.mark.parametrize(("kind", "spoils"), [("nan-input", "inputs"), ("bad-result", "outputs")])
def test_what_a_call_sends_or_brings_is_spoilt_there_alone(kind: str, spoils: str) -> None:
    scenario = parse_scenario(faulty(kind, call="b", iteration=2))
    found = [step.spoils for step in steps_of(scenario, 1)]
    assert [place for place, one in enumerate(found) if one] == [3]
    assert found[3] == spoils


def test_every_kind_that_rewrites_the_list_is_tried() -> None:
    assert set(CASES) == set(REWRITES)
    assert set(KINDS) - set(CASES) == {kind for kind in KINDS if kind.startswith("wrong")} | {"slow-link"}


def test_swapping_a_call_of_a_loop_swaps_each() -> None:
    assert names(faulty("swap", call="b"), 1) == "a c b c b"


def test_swapping_the_last_call_changes_nothing() -> None:
    assert names(faulty("swap", at=5), 1) == "a b c b c"


@pytest.mark.parametrize(
    ("kind", "key", "value", "field", "stated"),
    [
        ("wrong-dtype", "dtype", "int8", "dtype", "int8"),
        ("wrong-shape", "shape", 7, "shapes", ((7,),)),
        ("wrong-root", "root", 2, "root", 2),
        ("wrong-op", "op", "barrier", "op", "barrier"),
    ],
)
def test_a_fault_changes_what_one_iteration_states(
    kind: str, key: str, value: object, field: str, stated: object
) -> None:
    scenario = parse_scenario(faulty(kind, call="b", iteration=2, **{key: value}))
    before, after = (step for step in steps_of(scenario, 1) if step.name == "b")
    assert getattr(after, field) == stated
    assert getattr(before, field) != stated
    assert before.line == after.line


def test_faults_are_applied_one_after_the_other() -> None:
    text = faulty("skip", call="b", iteration=1) + "[[faults]]\nkind = 'crash'\nranks = 1\ncall = 'b'\n"
    assert names(text, 1) == "a c b"
    assert [step.op for step in steps_of(parse_scenario(text), 1)] == ["all_reduce", "compute", "crash"]


def test_groups_are_made_first_by_those_who_make_them() -> None:
    text = """
    ranks = 3
    [[groups]]
    name = "g"
    ranks = [0, 1]
    made_by = [0, 2]
    [[groups]]
    name = "h"
    ranks = [1, 2]
    variants = [{ on = 2, ranks = [0, 2] }]
    [[groups]]
    name = "later"
    ranks = [0, 1]
    [[calls]]
    op = "barrier"
    group = "h"
    [[calls]]
    op = "new_group"
    group = "later"
    ranks = "0-2"
    """
    scenario = parse_scenario(text)
    steps = [[(step.op, step.group) for step in steps_of(scenario, rank)] for rank in range(3)]
    assert steps[0] == [("new_group", "g"), ("new_group", "h"), ("new_group", "later")]
    assert steps[1] == [("new_group", "h"), ("barrier", "h"), ("new_group", "later")]
    assert steps[2] == [("new_group", "g"), ("new_group", "h"), ("barrier", "h"), ("new_group", "later")]
    assert scenario.members("h", 2) == (0, 2)


@given(st.lists(st.sampled_from(sorted(REWRITES)), max_size=5), st.integers(1, 5))
def test_no_fault_touches_another_rank(kinds: list[str], at: int) -> None:
    text = THREE
    for kind in kinds:
        where = "call = 'a'\nseconds = 1\n" if kind == "slow-rank" else "at = 1\n"
        text += f"[[faults]]\nkind = '{kind}'\nranks = 1\n{where}"
    assert names(text, 2) == names(THREE, 2)
