"""Where the parts of a TOML document stand, and what is refused."""

from __future__ import annotations

import string
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simcoll.core.documents import Place
from simcoll.core.toml import MAX_BYTES, TomlError, parse_toml, read_toml, spelled

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DOCUMENT = """\
# a comment
title = "a # b"   # another
text = '''
[not.a.table]
key = 1
'''
"quoted key" = { inner = [1, { deep = 2 }], "other" = 3 }
a.b . "c" = 1979-05-27

[[calls]]
op = "x"
shape = [
    1,  # one
    [2, 3],
]

  [[calls.overrides]]
  rank = 1

[[calls]]
op = \"\"\"four quotes\"\"\"\"

  [calls.table]
  [[calls.table.deep]]
  z = true
"""

LINES: dict[Place, int] = {
    ("title",): 2,
    ("text",): 3,
    ("quoted key",): 7,
    ("quoted key", "inner", 1, "deep"): 7,
    ("a", "b", "c"): 8,
    ("calls",): 10,
    ("calls", 0): 10,
    ("calls", 0, "op"): 11,
    ("calls", 0, "shape", 0): 13,
    ("calls", 0, "shape", 1, 1): 14,
    ("calls", 0, "overrides", 0): 17,
    ("calls", 0, "overrides", 0, "rank"): 18,
    ("calls", 1): 20,
    ("calls", 1, "op"): 21,
    ("calls", 1, "table"): 23,
    ("calls", 1, "table", "deep", 0, "z"): 25,
}


@pytest.mark.parametrize("place", LINES, ids=spelled)
def test_every_part_has_its_line(place: Place) -> None:
    assert parse_toml("x.toml", DOCUMENT).line(place) == LINES[place]


def test_what_has_no_line_of_its_own_has_that_of_what_holds_it() -> None:
    document = parse_toml("x.toml", DOCUMENT)
    assert document.line(("calls", 1, "absent", 3)) == 20
    assert document.line(("absent",)) == 1


def test_windows_lines_and_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_bytes(b"\xef\xbb\xbf" + DOCUMENT.replace("\n", "\r\n").encode())
    document = read_toml(path, "")
    assert {place: document.line(place) for place in LINES} == LINES


class Builder:
    """Writes a document and notes where its parts stand."""

    def __init__(self, draw: Callable[[st.SearchStrategy[Any]], Any]) -> None:
        self.draw = draw
        self.lines: list[str] = []
        self.places: dict[Place, int] = {}
        self._number = 0

    def key(self) -> tuple[str, str]:
        """A new key and how it is written."""
        self._number += 1
        name = f"{self.draw(st.text(string.ascii_letters + ' .#]=', max_size=4))}{self._number}"
        bare = all(letter in string.ascii_letters + string.digits + "-_" for letter in name)
        return name, name if bare and self.draw(st.booleans()) else self.draw(st.sampled_from(["'", '"'])).join(
            ["", name, ""]
        )

    def pairs(self, table: Place) -> None:
        for _ in range(self.draw(st.integers(0, 3))):
            self.blank()
            parts = [self.key() for _ in range(self.draw(st.integers(1, 2)))]
            self.lines.append(self.draw(st.sampled_from(["", "  "])) + ".".join(text for _, text in parts) + " = ")
            place = table
            for name, _ in parts:
                place = (*place, name)
                self.places[place] = len(self.lines)
            self.value(place, 0)

    def value(self, place: Place, depth: int) -> None:
        kind = self.draw(st.sampled_from(["number", "text", "block", "list", "inline"] if depth < 2 else ["number"]))
        if kind == "list":
            self.lines[-1] += "["
            for position in range(self.draw(st.integers(0, 3))):
                if self.draw(st.booleans()):
                    self.lines[-1] += " # ] ,"
                    self.lines.append("")
                self.places[(*place, position)] = len(self.lines)
                self.value((*place, position), depth + 1)
                self.lines[-1] += ", "
            self.lines[-1] += "]"
        elif kind == "inline":
            self.lines[-1] += "{ "
            for number in range(self.draw(st.integers(0, 2))):
                name, text = self.key()
                self.lines[-1] += f"{', ' if number else ''}{text} = "
                self.places[(*place, name)] = len(self.lines)
                self.value((*place, name), 2)
            self.lines[-1] += " }"
        elif kind == "block":
            self.lines[-1] += '"""'
            self.lines += [self.draw(st.sampled_from(["[x]", "a = 1", '"', r"\"", "#"])), '"""']
        else:
            self.lines[-1] += {"number": "1e3", "text": '"a \\" # ]"'}[kind]

    def blank(self) -> None:
        self.lines += self.draw(st.lists(st.sampled_from(["", "# [x]", "   "]), max_size=2))

    def table(self, outer: Place, depth: int, header: str) -> None:
        name, text = self.key()
        header = f"{header}.{text}" if header else text
        many = self.draw(st.booleans())
        for number in range(self.draw(st.integers(1, 2)) if many else 1):
            self.blank()
            self.lines.append(f"[[{header}]]" if many else f"[{header}]")
            place: Place = (*outer, name, number) if many else (*outer, name)
            self.places[place] = len(self.lines)
            self.pairs(place)
            for _ in range(self.draw(st.integers(0, 1)) if depth < 2 else 0):
                self.table(place, depth + 1, header)


@st.composite
def documents(draw: Callable[[st.SearchStrategy[Any]], Any]) -> tuple[str, dict[Place, int]]:
    """A document, and the line of each of its parts."""
    builder = Builder(draw)
    builder.pairs(())
    for _ in range(draw(st.integers(0, 2))):
        builder.table((), 0, "")
    return "\n".join(builder.lines) + "\n", builder.places


@pytest.mark.slow
@settings(max_examples=60)
@given(documents())
def test_lines_of_any_document(drawn: tuple[str, dict[Place, int]]) -> None:
    text, places = drawn
    document = parse_toml("x.toml", text)
    assert document.value == tomllib.loads(text)
    assert {place: document.line(place) for place in places} == places


@pytest.mark.slow
@settings(max_examples=60)
@given(st.text(st.characters(codec="utf-8"), max_size=60))
def test_any_text_is_read_or_refused_in_one_line(text: str) -> None:
    assert read_or_refused(text).startswith(("read", "x.toml"))


def read_or_refused(text: str) -> str:
    try:
        document = parse_toml("x.toml", text)
    except TomlError as error:
        return str(error)
    return f"read {[document.line((key,)) for key in document.value]}"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a = 1\nb =\n", "x.toml, line 2: no TOML: Invalid value (column 4)"),
        ("a = 1\na = 2\n", "x.toml, line 2: no TOML: Cannot overwrite a value"),
        ("a = [1,\n2", "x.toml, line 2: no TOML: Unclosed array"),
        ("a = 1\n" + "b." * 40 + "c = 1", "x.toml, line 2: more than 32 keys joined by dots"),
        ("a = 1\nb = " + "9" * 5000, "x.toml, line 2: a number"),
        ("a = 1\nb = 99999999999999999999", "x.toml, line 2: b is a number of more than 64 bits"),
        ("\n\na = inf", "x.toml, line 3: a is inf, expected a finite number"),
        ("a = " + "[" * 200 + "]" * 200, "x.toml, line 1: a[1][1][1] is nested too deeply"),
        ("a = " + "[" * 100_000, "x.toml: nested too deeply"),
    ],
)
def test_what_is_refused_names_its_line(text: str, said: str) -> None:
    with pytest.raises(TomlError) as raised:
        parse_toml("x.toml", text)
    assert str(raised.value).startswith(said)
    assert len(str(raised.value)) < 200


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    large, latin = tmp_path / "large.toml", tmp_path / "latin.toml"
    large.write_bytes(b"#" * (MAX_BYTES + 1))
    latin.write_bytes(b"a = 1\nb = '\xe9'\n")
    for path, said in ((large, "more than 524,288 bytes"), (latin, "line 2: byte 0xe9"), (tmp_path, "cannot read")):
        with pytest.raises(TomlError, match=said):
            read_toml(path, "")
