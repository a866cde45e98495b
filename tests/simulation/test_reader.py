"""Scenario files: what they say, and errors that name the line and the key."""

from __future__ import annotations

import string
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simcoll.core.toml import TomlError
from simcoll.simulation.keys import KEYS
from simcoll.simulation.library import scenario_path
from simcoll.simulation.rank_steps import check_steps, steps_of
from simcoll.simulation.reader import read_scenario
from simcoll.simulation.scenario import CallPlan, Loop, Relative
from simcoll.spec.call import ANY_SOURCE
from tests.support.scenarios import parse_scenario
from tests.support.seeds import drawn

ONE_CALL = 'ranks = 4\n[[calls]]\nop = "all_reduce"\n'


def test_a_whole_file() -> None:
    scenario = parse_scenario(
        """
        title = "two halves"
        ranks = 4
        [[groups]]
        name = "front"
        ranks = "0-1"
        [[calls]]
        name = "sum"
        op = "all_reduce"
        group = "front"
        shape = [2, 3]
        overrides = [{ ranks = 1, dtype = "int64" }]
        [[calls]]
        repeat = 3
        ranks = [2, 3]
        [[calls.calls]]
        op = "send"
        peer = "-1"
        [[calls.calls]]
        op = "irecv"
        peer = "any"
        [expect]
        findings = []
        """
    )
    first, loop = scenario.calls
    assert isinstance(first, CallPlan)
    assert (first.step.op, first.step.line, first.step.shapes) == ("all_reduce", 9, ((2, 3),))
    assert first.overrides[0].fields == {"dtype": "int64"}
    assert isinstance(loop, Loop)
    assert (loop.repeat, loop.ranks) == (3, frozenset({2, 3}))
    assert [each.step.peer for each in loop.calls if isinstance(each, CallPlan)] == [Relative(-1), ANY_SOURCE]
    assert scenario.expect is not None
    assert scenario.expect.findings == ()
    assert scenario.group("front") is not None


REFUSED = {
    "misspelt key": (
        ONE_CALL + 'reduceop = "max"',
        "line 4: calls[1].reduceop is no key of [[calls]]; did you mean `reduce_op`?",
    ),
    "misspelt op": (
        'ranks = 2\n[[calls]]\nop = "all_redcue"',
        "line 3: calls[1].op is 'all_redcue'; did you mean `all_reduce`?",
    ),
    "misspelt reduce op": (
        ONE_CALL + 'reduce_op = "maxx"',
        "line 4: calls[1].reduce_op is 'maxx'; did you mean `max`?",
    ),
    "no such dtype": (ONE_CALL + 'dtype = "bfloat16"', "line 4: calls[1].dtype is 'bfloat16'; did you mean `float16`?"),
    "no ranks": ("calls = []", "x.toml, line 1: a scenario needs the key `ranks`"),
    "no calls": ("ranks = 1", "a scenario needs the key `calls`"),
    "no op": ("ranks = 1\n\n[[calls]]\nshape = 1", "line 3: calls[1]: [[calls]] needs the key `op`"),
    "wrong type": ('ranks = "4"\ncalls = []', "line 1: ranks is '4', expected a whole number from 1 to 4,096"),
    "a truth value": ("ranks = true\ncalls = []", "line 1: ranks is true, expected a whole number"),
    "too many ranks": ("ranks = 5000\ncalls = []", "line 1: ranks is 5000, expected a whole number from 1 to 4,096"),
    "no such rank": (ONE_CALL + 'ranks = "2-9"', "line 4: calls[1].ranks is '2-9', expected ranks below 4"),
    "no ranks at all": (ONE_CALL + "ranks = []", "line 4: calls[1].ranks is [], expected ranks below 4"),
    "a rank twice": (ONE_CALL + "ranks = [1, 1]", "line 4: calls[1].ranks is [1, 1], expected each rank once"),
    "huge ranges": (ONE_CALL + 'ranks = "0-999999999"', "line 4: calls[1].ranks is '0-999999999', expected ranks"),
    "huge shape": (
        ONE_CALL + "shape = [99999, 99999]",
        "line 4: calls[1].shape is [99999, 99999], expected at most 67,108,864",
    ),
    "huge on all": (
        "ranks = 4096\n[[calls]]\nop = 'all_gather'\nshape = [1000]",
        "line 4: calls[1].shape makes 16,777,216,000 elements on 4096 ranks together",
    ),
    "negative shape": (ONE_CALL + "shape = [-1]", "line 4: calls[1].shape is [-1], expected a shape"),
    "many dimensions": (ONE_CALL + f"shape = {[1] * 9}", "line 4: calls[1].shape is [1, 1"),
    "huge repeat": (
        "ranks = 2\n[[calls]]\nrepeat = 10000000\n[[calls.calls]]\nop = 'barrier'",
        "line 3: calls[1].repeat is 10000000, expected a whole number from 0 to 100,000",
    ),
    "repeat of nothing": ("ranks = 2\n[[calls]]\nrepeat = 2", "line 3: calls[1].repeat needs nested `calls`"),
    "repeat with an op": (
        "ranks = 2\n[[calls]]\nrepeat = 2\nop = 'barrier'\ncalls = []",
        "line 4: calls[1].op does not go with `repeat`",
    ),
    "what does not go with an op": (
        ONE_CALL + "root = 1",
        "line 4: calls[1].root does not go with all_reduce, which takes",
    ),
    "shapes of one tensor": (ONE_CALL + "shapes = [[1]]", "line 4: calls[1].shapes does not go with all_reduce"),
    "an asynchronous send": (
        "ranks = 2\n[[calls]]\nop = 'send'\npeer = 1\nasync = true",
        "line 5: calls[1].async does not go with send",
    ),
    "a send to nobody": (
        "ranks = 2\n[[calls]]\nop = 'send'",
        "line 3: calls[1].op is 'send', which needs the key `peer`",
    ),
    "a send to anybody": (
        "ranks = 2\n[[calls]]\nop = 'send'\npeer = 'any'",
        "line 4: calls[1].peer is 'any', which is for receives",
    ),
    "a peer of words": (
        "ranks = 2\n[[calls]]\nop = 'recv'\npeer = 'next'",
        "line 4: calls[1].peer is 'next', expected a group rank",
    ),
    "no such group": (ONE_CALL + 'group = "evens"', "line 4: calls[1].group is 'evens', expected one of world"),
    "no such buffer": (
        ONE_CALL + 'buffer = "x"',
        "line 4: calls[1].buffer names a buffer, but there is no [[buffers]]",
    ),
    "no such call": (
        ONE_CALL + "[[calls]]\nop = 'wait'\ncall = 'al_reduce'",
        "line 6: calls[2].call is 'al_reduce'; did you mean `all_reduce`?",
    ),
    "a group named twice": (
        "ranks = 2\ngroups = [{name='a', ranks=0},\n {name='a', ranks=1}]\ncalls = []",
        "line 3: groups[2].name is 'a', expected a name of its own",
    ),
    "a group named world": (
        "ranks = 2\ngroups = [{name='world', ranks=0}]\ncalls = []",
        "line 2: groups[1].name is 'world'",
    ),
    "a part of nothing": (
        "ranks = 1\ncalls = []\n[[buffers]]\nname = 'a'\n[[buffers]]\nname = 'b'\nof = 'a'\nrows = [2, 9]",
        "line 8: buffers[2].rows is [2, 9], expected whole numbers from 0 to 4",
    ),
    "rows the wrong way round": (
        "ranks = 1\ncalls = []\n[[buffers]]\nname = 'a'\n[[buffers]]\nname = 'b'\nof = 'a'\nrows = [3, 2]",
        "line 8: buffers[2].rows `rows` is to be [first, end], at most 4",
    ),
    "an action without what it needs": (
        "ranks = 1\n[[calls]]\nop = 'compute'",
        "line 3: calls[1].op is 'compute', which needs the key `seconds`",
    ),
    "an order that is none": (ONE_CALL + "order = [0, 0]", "line 4: calls[1].order is to list each dimension once"),
    "a table that is none": ("ranks = 1\ncalls = [3]", "line 2: calls[1] is 3, expected a table such as [calls[1]]"),
    "tables that are none": ("ranks = 1\ncalls = 3", "line 2: calls is 3, expected tables that begin with [[calls]]"),
    "an escape sequence": (
        'ranks = 1\ncalls = []\ntitle = "\\u001b[2J"',
        "line 3: title is '\\x1b[2J', expected a text that can be printed",
    ),
    "a time": (
        "ranks = 1979-05-27\ncalls = []",
        "line 1: ranks is datetime.date(1979, 5, 27), expected a whole number",
    ),
    "a kind of fault": (
        ONE_CALL + "[[faults]]\nkind = 'crush'\nranks = 1\ncall = 'all_reduce'",
        "line 5: faults[1].kind is 'crush'; did you mean `crash`?",
    ),
    "a fault nowhere": (
        ONE_CALL + "[[faults]]\nkind = 'crash'\nranks = 1",
        "line 5: faults[1].kind is 'crash', which needs either `call` or `at`",
    ),
    "a fault on nobody": (
        ONE_CALL + "[[faults]]\nkind = 'crash'\nat = 1",
        "line 5: faults[1].kind is 'crash', which needs the key `ranks`",
    ),
    "a fault of another kind": (
        ONE_CALL + "[[faults]]\nkind = 'crash'\nranks = 1\nat = 1\nshape = 3",
        "line 8: faults[1].shape does not go with 'crash', which takes at, call, exception",
    ),
    "a fault without its value": (
        ONE_CALL + "[[faults]]\nkind = 'wrong-root'\nranks = 1\nat = 1",
        "line 5: faults[1].kind is 'wrong-root', which needs `root`",
    ),
    "an exception that is none": (
        ONE_CALL + "[[faults]]\nkind = 'crash'\nranks = 1\nat = 1\nexception = 'os.system()'",
        "line 8: faults[1].exception is 'os.system()', expected a type such as ValueError",
    ),
    "a link of three": (
        ONE_CALL + "[[faults]]\nkind = 'slow-link'\nbetween = [0, 1, 2]",
        "line 6: faults[1].between has 3 ranks, expected the two ends of a path",
    ),
    "a code that is none": (
        ONE_CALL + "[expect]\nfindings = ['SC999']",
        "line 5: expect.findings names 'SC999', expected one of SC101",
    ),
    "two topologies": (
        ONE_CALL + "[topology]\npreset = 'a'\nfile = 'b'",
        "line 6: topology.file does not go with `preset`",
    ),
    "a fault that no call has": (
        ONE_CALL
        + "[[calls]]\nop = 'barrier'\nname = 'end'\nranks = 0\n[[faults]]\nkind = 'skip'\nranks = 1\ncall = 'end'",
        "line 9: skip: rank 1 never makes the call 'end'; it makes all_reduce",
    ),
    "a fault that comes too often": (
        ONE_CALL + "[[faults]]\nkind = 'skip'\nranks = 1\ncall = 'all_reduce'\niteration = 2",
        "line 5: skip: rank 1 makes the call 'all_reduce' 1 times, iteration is 2",
    ),
    "a fault that does not fit": (
        ONE_CALL + "[[faults]]\nkind = 'wrong-root'\nranks = 1\nat = 1\nroot = 2",
        "line 5: wrong-root: all_reduce has no root",
    ),
    "a group that a rank does not make": (
        "ranks = 2\ngroups = [{name = 'g', ranks = [0, 1], made_by = 0}]\n"
        "[[calls]]\nop = 'barrier'\ngroup = 'g'\nranks = 1",
        "line 4: barrier: rank 1 uses group 'g' before it has made it",
    ),
    "too many calls": (
        "ranks = 1\n[[calls]]\nrepeat = 1000\n[[calls.calls]]\nrepeat = 1000\n[[calls.calls.calls]]\nop = 'barrier'",
        "line 7: rank 0 makes more than 100,000 calls; repeat less",
    ),
    "too many calls of all": (
        "ranks = 4096\n[[calls]]\nrepeat = 10000\n[[calls.calls]]\nop = 'barrier'",
        "the ranks make more than 4,000,000 calls together",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_names_the_line_and_the_key(case: str) -> None:
    text, said = REFUSED[case]
    with pytest.raises(TomlError) as raised:
        check_steps(parse_scenario(text, "x.toml"))
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 400


def test_a_repeat_within_a_repeat_within_a_repeat() -> None:
    text = "ranks = 1\n"
    for depth in range(1, 12):
        text += f"[[{'.'.join(['calls'] * depth)}]]\nrepeat = 1\n"
    with pytest.raises(TomlError, match="up to 8 levels deep"):
        parse_scenario(text)


def test_a_name_like_any_other_is_safe() -> None:
    name = '[red] __import__("os")'
    scenario = parse_scenario(f"ranks = 1\n[[calls]]\nname = '{name}'\nop = 'barrier'")
    check_steps(scenario)
    assert [step.name for step in steps_of(scenario, 0)] == [name]


def test_a_topology_file_lies_beside_the_scenario(tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    path.write_text("ranks = 1\ncalls = []\n[topology]\nfile = 'mine.json'\n")
    topology = read_scenario(path).topology
    assert topology is not None
    assert topology.topology == str(tmp_path / "mine.json")


VALUES = st.recursive(
    st.one_of(
        st.integers(-3, 9),
        st.just(10**12),
        st.booleans(),
        st.floats(allow_nan=False, allow_infinity=False),
        st.sampled_from(["", "x", "all_reduce", "barrier", "0-3", "any", "+1", "max", "g", "crash", "SC104", "\u202e"]),
    ),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(sorted({key.name for keys in KEYS.values() for key in keys})), inner, max_size=4
        )
    ),
    max_leaves=8,
)


def toml(value: object) -> str:
    """A value as inline TOML."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return '"' + "".join(c if c in string.printable else f"\\u{ord(c):04x}" for c in value) + '"'
    if isinstance(value, list):
        return f"[{', '.join(map(toml, value))}]"
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{key} = {toml(each)}' for key, each in value.items())} }}"
    return repr(value)


@pytest.mark.slow
@settings(max_examples=drawn(300))
@given(
    st.dictionaries(st.sampled_from([key.name for key in KEYS[""]]), VALUES),
    st.dictionaries(st.sampled_from([key.name for key in KEYS["calls"]]), VALUES),
    st.dictionaries(st.sampled_from([key.name for key in KEYS["faults"]]), VALUES),
)
def test_any_values_are_read_or_refused_in_one_line(top: dict, call: dict, fault: dict) -> None:
    top = {"ranks": 4, "calls": [{"op": "barrier", "name": "x"}, {"op": "all_reduce", **call}], **top}
    top = {"faults": [{"kind": "skip", "ranks": 1, "call": "x", **fault}], **top}
    text = "\n".join(f"{key} = {toml(value)}" for key, value in top.items())
    said = refusal(text)
    assert said.startswith(("read", "x.toml, line "))
    assert len(said) < 500


def refusal(text: str) -> str:
    try:
        check_steps(parse_scenario(text, "x.toml"))
    except TomlError as error:
        return str(error)
    return "read"


@pytest.mark.parametrize("code", ["SC104", "sc104"])
def test_the_library_is_found(code: str) -> None:
    path = scenario_path(code)
    assert path is not None
    assert read_scenario(path).ranks == 4


@pytest.mark.parametrize("code", ["SC999", "../SC104", "", "SC104.toml"])
def test_what_is_not_in_the_library(code: str) -> None:
    assert scenario_path(code) is None
