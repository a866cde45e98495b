"""JSON and YAML whose errors name the line, and what hostile texts may not do."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simcoll.topology.graph import TopologyError
from simcoll.topology.json_yaml import dump_yaml, parse_json, parse_yaml, read_text

TEXTS = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)


def places(value, place=()):
    yield place
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, member in inner:
        yield from places(member, (*place, step))


@given(VALUES)
def test_the_line_of_each_part_of_a_json_text_is_found(value):
    """In a text with each member on a line of its own the line of a part is the one where its key or value stands."""
    text = json.dumps(value, indent=1)
    document = parse_json("x", text)
    assert document.value == value
    lines = text.splitlines()
    for place in places(value):
        line = lines[document.line(place) - 1].strip()
        if place and isinstance(place[-1], str):
            assert line.startswith(json.dumps(place[-1]))


@given(VALUES)
def test_yaml_gives_back_what_was_written(value):
    assert parse_yaml("x", dump_yaml(value)).value == value


def test_yaml_lines():
    document = parse_yaml("x", "a:\n  - 1\n  - b: 2e3\n    c: '3'\n")
    assert document.value == {"a": [1, {"b": 2000.0, "c": "3"}]}
    assert [document.line(place) for place in ((), ("a",), ("a", 1, "c"), ("a", 1, "none"))] == [1, 1, 4, 3]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: no JSON"),
        ('{"a":\n1,}', "line 2: no JSON"),
        ("[" * 100_000, "nested too deeply"),
        ('{"a":' * 100_000, "nested too deeply"),
        ("[" * 200 + "]" * 200, "nested too deeply"),
        ('{"a": 1,\n"b": 2,\n"a": 3}', "line 3: the key 'a' is repeated"),
        ('{\n"a": NaN}', "line 2: NaN"),
        ("[-Infinity]", "-Infinity"),
        ("[\n1e999]", "line 2: .*inf"),
        ("[" + "9" * 5000 + "]", "5000 digits"),
        ('["\\u001b[31m"]', "can be printed"),
        ('["\\ud800"]', "can be printed"),
        ('{"\\u0007": 1}', "cannot be printed"),
    ],
)
def test_json_that_is_refused(text, message):
    with pytest.raises(TopologyError, match=f"^x, .*{message}"):
        parse_json("x", text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000, "nested too deeply"),
        ("- " * 500 + "a", "nested too deeply"),
        ("a: &x [1]\nb: *x", "line 1: an anchor"),
        ("a: 1\nb: !!python/name:os.system x", "line 2: the tag"),
        ("a: 1\n---\nb: 2", "a second document"),
        ("a: 1\na: 2", "line 2: the key 'a' is repeated"),
        ("? [a]\n: b", "a key that is no text"),
        ("a:\n\t- 1", "line 2: no YAML"),
        ("a: [1", "no YAML"),
        ("a: 1e999", "inf"),
    ],
)
def test_yaml_that_is_refused(text, message):
    with pytest.raises(TopologyError, match=message) as caught:
        parse_yaml("x", text)
    assert "\n" not in str(caught.value)


def test_without_pyyaml_the_error_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "yaml", None)
    with pytest.raises(TopologyError, match=r"pip install 'simcoll\[yaml\]'"):
        parse_yaml("x", "a: 1")
    with pytest.raises(TopologyError, match="write JSON"):
        dump_yaml({})


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(TopologyError, match="No such file"):
        read_text(tmp_path / "none.json")
    with pytest.raises(TopologyError, match="Is a directory"):
        read_text(tmp_path)
    (tmp_path / "binary").write_bytes(b"a\n\xff")
    with pytest.raises(TopologyError, match="line 2: byte 0xff"):
        read_text(tmp_path / "binary")
    (tmp_path / "zero").write_bytes(b"a\n\n\0")
    with pytest.raises(TopologyError, match="line 3: a zero byte"):
        read_text(tmp_path / "zero")
