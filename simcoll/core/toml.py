"""TOML documents whose errors name the line: a value, and the line of each part of it.

The standard parser gives no lines. When one is needed, the text, which the parser has accepted, is scanned once more
for the line of every key and element. Size, depth and numbers are limited, against hostile files.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from simcoll.core.documents import Place, located, parts, read_utf8

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MAX_BYTES = 1 << 19
"""The most bytes of a file; one written by hand has some kilobytes."""

MAX_DEPTH = 32
"""The most levels of tables and lists."""


class TomlError(ValueError):
    """A TOML file that cannot be read or has an invalid part; one line that names the file and its line."""


@dataclass(frozen=True, slots=True)
class TomlDocument:
    """A parsed file: name, text and value."""

    name: str
    text: str
    value: Mapping[str, Any]
    _lines: dict[Place, int] = field(default_factory=dict)

    def line(self, place: Place) -> int:
        """The line, from 1, of the key or element at a place, or else of the innermost table around it with a line."""
        if not self._lines:
            self._lines.update(_Scanner(self.text).lines())
        while place and place not in self._lines:
            place = place[:-1]
        return self._lines.get(place, 1)

    def error(self, place: Place, problem: str) -> TomlError:
        """An error about a part: file, line, part and problem."""
        return TomlError(located(self.name, self.line(place), spelled(place), problem))


def spelled(place: Place) -> str:
    """``calls[2].shape``, or an empty text for the whole document; elements of a list count from 1."""
    return "".join(f"[{step + 1}]" if isinstance(step, int) else f".{step:.40}" for step in place).lstrip(".")


def read_toml(path: Path, limit: str) -> TomlDocument:
    """Read a file; raises TomlError if it is absent, no file, too large (then with ``limit``) or no TOML."""
    text = read_utf8(path, MAX_BYTES, TomlError, "give a TOML file", limit)
    return parse_toml(str(path), text)


_AT = re.compile(r"\s*\(at line (\d+), column (\d+)\)$|\s*\(at end of document\)$")
_LONG_NUMBER = re.compile(r"[\d_]{300,}")
_PART = r"""(?:[\w-]+|"[^"\n]*"|'[^'\n]*')"""
_DEEP_KEY = re.compile(rf"(?<![\w-])(?:{_PART}[ \t]*\.[ \t]*){{{MAX_DEPTH}}}")


def parse_toml(name: str, text: str) -> TomlDocument:
    """Parse a TOML document; raises TomlError, which names the line, for invalid text."""
    text = text.replace("\r\n", "\n")
    # Text that the standard parser takes long for, or fails on without a line.
    for pattern, problem in ((_DEEP_KEY, f"more than {MAX_DEPTH} keys joined by dots"), (_LONG_NUMBER, "a number")):
        if found := pattern.search(text):
            line = text.count("\n", 0, found.start()) + 1
            raise TomlError(f"{name}, line {line}: {problem} {found[0][:24]}..., expected something shorter")
    try:
        value = tomllib.loads(text)
    except RecursionError:
        raise TomlError(f"{name}: nested too deeply, expected at most {MAX_DEPTH} levels") from None
    except ValueError as error:
        raise TomlError(_syntax_error(name, text, str(error))) from None
    return _bounded(TomlDocument(name, text, value))


def _syntax_error(name: str, text: str, message: str) -> str:
    """The parser's message with its line in front."""
    at = _AT.search(message)
    problem = _AT.sub("", message)
    if at is None:
        return f"{name}: no TOML: {problem}"
    line = int(at[1]) if at[1] else text.rstrip("\n").count("\n") + 1
    column = f" (column {at[2]})" if at[2] else ""
    return f"{name}, line {line}: no TOML: {problem}{column}"


def _bounded(document: TomlDocument) -> TomlDocument:
    """The document, if it is not too deep and its numbers are finite and fit 64 bits; raises TomlError otherwise."""
    for place, value in parts(document.value):
        if len(place) > MAX_DEPTH:
            raise document.error(place[:4], f"is nested too deeply, expected at most {MAX_DEPTH} levels")
        if isinstance(value, float) and not math.isfinite(value):
            raise document.error(place, f"is {value}, expected a finite number")
        if isinstance(value, int) and abs(value) >= 1 << 63:
            raise document.error(place, "is a number of more than 64 bits")
    return document


_BLANK = re.compile(r"(?:[ \t\n]|#[^\n]*)*")
_SPACE = re.compile(r"[ \t]*")
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_STRING = re.compile(
    r'"""(?:[^\\]|\\.)*?"""+' r"|'''.*?'''+" r'|"(?:[^"\\\n]|\\.)*"' r"|'[^'\n]*'",
    re.DOTALL,
)
_SCALAR = re.compile(r"[^,\]}#\n]*")


class _Scanner:
    """Scans a text that is valid TOML for the line at which each key and element begins."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._line = 1
        self._counted = 0
        self._lines: dict[Place, int] = {}
        self._arrays: dict[Place, int] = {}
        """The number of tables of each ``[[array]]`` so far."""

    def lines(self) -> dict[Place, int]:
        """The line of each place."""
        table: Place = ()
        while self._skip(_BLANK) < len(self._text):
            if self._text.startswith("[", self._at):
                table = self._header()
            else:
                self._pair(table)
        return self._lines

    def _header(self) -> Place:
        """Scan ``[a.b]`` or ``[[a.b]]``; returns the place of the table."""
        line, opening = self._line_here(), 2 if self._text.startswith("[[", self._at) else 1
        self._at += opening
        *outer, last = self._key()
        self._at += opening
        place: Place = ()
        for step in outer:
            place = self._entered((*place, step))
        place = (*place, last)
        if opening == 2:
            self._lines.setdefault(place, line)
            self._arrays[place] = self._arrays.get(place, 0) + 1
        place = self._entered(place)
        self._lines[place] = line
        return place

    def _entered(self, place: Place) -> Place:
        """The table at a place: the last one of an array."""
        count = self._arrays.get(place, 0)
        return (*place, count - 1) if count else place

    def _pair(self, table: Place) -> None:
        """``key = value``."""
        line, place = self._line_here(), table
        for step in self._key():
            place = (*place, step)
            self._lines.setdefault(place, line)
        self._at += 1  # the equals sign
        self._value(place)

    def _key(self) -> list[str]:
        """Scan a key of one or several parts, and the spaces after it."""
        parts = []
        while True:
            self._skip(_SPACE)
            if self._text[self._at] in "\"'":
                start = self._at
                self._skip(_STRING)
                parts.append(_unquoted(self._text[start : self._at]))
            else:
                start = self._at
                self._skip(_BARE)
                parts.append(self._text[start : self._at])
            self._skip(_SPACE)
            if self._text[self._at] != ".":
                return parts
            self._at += 1

    def _value(self, place: Place) -> None:
        self._skip(_SPACE)
        opening = self._text[self._at]
        if opening == "[":
            self._list(place)
        elif opening == "{":
            self._inline_table(place)
        else:
            self._skip(_STRING if opening in "\"'" else _SCALAR)

    def _list(self, place: Place) -> None:
        self._at += 1
        position = 0
        while self._text[self._skip(_BLANK)] != "]":
            self._lines[(*place, position)] = self._line_here()
            self._value((*place, position))
            if self._text[self._skip(_BLANK)] == ",":
                self._at += 1
            position += 1
        self._at += 1

    def _inline_table(self, place: Place) -> None:
        self._at += 1
        while self._text[self._skip(_BLANK)] != "}":
            self._pair(place)
            if self._text[self._skip(_BLANK)] == ",":
                self._at += 1
        self._at += 1

    def _skip(self, pattern: re.Pattern[str]) -> int:
        found = pattern.match(self._text, self._at)
        self._at = found.end() if found else self._at
        return self._at

    def _line_here(self) -> int:
        self._line += self._text.count("\n", self._counted, self._at)
        self._counted = self._at
        return self._line


def _unquoted(key: str) -> str:
    """The value of a quoted key, by the standard parser."""
    read: Callable[[str], dict[str, str]] = tomllib.loads
    return read(f"key = {key}")["key"]
