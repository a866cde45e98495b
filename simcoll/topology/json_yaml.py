"""JSON and YAML documents whose errors name the line: a value, and the place of each part of it in the text.

The text is parsed by the standard decoder; the line of a part is looked for only for an error.
Hostile texts are bounded: size, depth and numbers are limited, repeated keys and, in YAML, all but plain data refused.

YAML needs PyYAML (``pip install 'simcoll[yaml]'``). Only plain data is read, from its events: nothing is constructed by
tag, and anchors, aliases, tags and repeated keys are refused. Numbers are those of JSON, so that ``50e9`` is a number,
as its writer meant.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from json.decoder import scanstring  # type: ignore[attr-defined]  # documented nowhere, and the decoder's own
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from simcoll.core.documents import Place, located, parts, read_utf8
from simcoll.errors import TopologyError

if TYPE_CHECKING:
    from yaml.events import Event

_INTEGER = re.compile(r"[-+]?\d{1,300}")
_REAL = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
_WORDS: dict[str, Json] = {"true": True, "false": False, "null": None, "~": None, "": None}


def parse_yaml(name: str, text: str) -> Document:
    """A YAML document; raises TopologyError, which names the line, for a text that is none, or without PyYAML."""
    try:
        import yaml
    except ImportError:
        raise TopologyError(
            f"{name} is no JSON, and YAML needs PyYAML: pip install 'simcoll[yaml]', or give the file as JSON"
        ) from None
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    reader = _Reader(name, yaml.parse(text, Loader=loader))
    try:
        value = reader.document()
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise TopologyError(f"{name}, line {line}: no YAML: {error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise TopologyError(f"{name}: no YAML: {' '.join(str(error).split())}") from None
    return bounded(Document(name, value, reader.line))


class _Reader:
    """Builds a value from events, and remembers the line of each of its parts."""

    def __init__(self, name: str, events: Iterator[Event]) -> None:
        self._name = name
        self._events = events
        self._lines: dict[Place, int] = {}

    def line(self, place: Place) -> int:
        """The line of a part, or of the nearest part around it."""
        while place not in self._lines and place:
            place = place[:-1]
        return self._lines.get(place, 1)

    def document(self) -> Json:
        """The only document of the stream."""
        self._next()
        start = self._next()
        if _kind(start) == "StreamEnd":
            return None
        value = self._value(self._next(), ())
        self._next()
        more = self._next()
        if _kind(more) != "StreamEnd":
            self._refuse(more, "a second document, expected one")
        return value

    def _next(self) -> Event:
        event = next(self._events)
        if getattr(event, "anchor", None) is not None:
            self._refuse(event, "an anchor or an alias, expected plain data; write it out")
        if getattr(event, "tag", None) not in (None, "!"):
            self._refuse(event, f"the tag {event.tag}, expected plain data")  # type: ignore[attr-defined]
        return event

    def _value(self, start: Event, place: Place) -> Json:
        self._lines.setdefault(place, _line(start))
        if len(place) > MAX_DEPTH:
            self._refuse(start, f"nested too deeply, expected at most {MAX_DEPTH} levels")
        if _kind(start) == "Scalar":
            return self._scalar(start)
        if _kind(start) == "SequenceStart":
            return [self._value(each, (*place, number)) for number, each in enumerate(self._until("SequenceEnd"))]
        found: dict[str, Json] = {}
        for event in self._until("MappingEnd"):
            if _kind(event) != "Scalar":
                self._refuse(event, "a key that is no text")
            key: str = event.value  # type: ignore[attr-defined]
            if key in found:
                self._refuse(event, f"the key {key!r} is repeated, expected it once")
            self._lines[(*place, key)] = _line(event)
            found[key] = self._value(self._next(), (*place, key))
        return found

    def _until(self, end: str) -> Iterator[Event]:
        while _kind(event := self._next()) != end:
            yield event

    def _scalar(self, event: Event) -> Json:
        text: str = event.value  # type: ignore[attr-defined]
        if event.style:  # type: ignore[attr-defined]  # in quotes, or a block of text
            return text
        if text.lower() in _WORDS:
            return _WORDS[text.lower()]
        if _INTEGER.fullmatch(text):
            return int(text)
        return float(text) if _REAL.fullmatch(text) else text

    def _refuse(self, event: Event, what: str) -> NoReturn:
        raise TopologyError(f"{self._name}, line {_line(event)}: {what}")


def _line(event: Event) -> int:
    return event.start_mark.line + 1 if event.start_mark else 1


def _kind(event: Event) -> str:
    return type(event).__name__.removesuffix("Event")


def dump_yaml(value: dict[str, Json]) -> str:
    """A value as YAML; raises TopologyError without PyYAML."""
    try:
        import yaml
    except ImportError:
        raise TopologyError("writing YAML needs PyYAML: pip install 'simcoll[yaml]', or write JSON (.json)") from None
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    text: str = yaml.dump(value, Dumper=dumper, sort_keys=False, default_flow_style=None, width=1000)
    return text


MAX_BYTES = 1 << 28
"""A topology of 16,384 GPUs takes about 20 MB."""

MAX_DEPTH = 64

Json = dict[str, "Json"] | list["Json"] | str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Document:
    """A parsed file: its name, its value, and ``line``, which finds the line of a part, counted from 1."""

    name: str
    value: Json
    line: Callable[[Place], int]

    def error(self, place: Place, problem: str) -> TopologyError:
        """An error about a part: file, line, the part and the problem."""
        return TopologyError(located(self.name, self.line(place), _spelled(place), problem))


def _spelled(place: Place) -> str:
    """``links[3].bandwidth``, or nothing for the whole document."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in place).lstrip(".")


def read_text(path: Path) -> str:
    """The text of a file; raises TopologyError if it is absent, no file, too large, or no UTF-8 text."""
    text = read_utf8(path, MAX_BYTES, TopologyError, "give a topology file", ", expected a topology file")
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise TopologyError(f"{path}, line {line}: a zero byte; this is no text file")
    return text


def parse_json(name: str, text: str) -> Document:
    """A JSON document; raises TopologyError, which names the line, for a text that is none."""
    repeated: list[str] = []

    def members(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
        found = dict(pairs)
        if len(found) < len(pairs):
            keys = [key for key, _ in pairs]
            repeated.append(next(key for key in keys if keys.count(key) > 1))
        return found

    try:
        value = json.loads(text, object_pairs_hook=members, parse_constant=_no_constant, parse_int=_integer)
    except json.JSONDecodeError as error:
        raise TopologyError(f"{name}, line {error.lineno}: no JSON: {error.msg} (column {error.colno})") from None
    except RecursionError:
        raise TopologyError(f"{name}, line 1: nested too deeply, expected at most {MAX_DEPTH} levels") from None
    except _Unwanted as error:
        line = _line_of(text, re.escape(error.token))
        raise TopologyError(f"{name}, line {line}: {error.shown}, expected a finite number") from None
    if repeated:
        key = repeated[0]
        line = _line_of(text, re.escape(json.dumps(key, ensure_ascii=False)) + r"\s*:", last=True)
        raise TopologyError(f"{name}, line {line}: the key {key!r} is repeated, expected it once")
    return bounded(Document(name, value, lambda place: _json_line(text, place)))


class _Unwanted(ValueError):  # noqa: N818  # it never leaves this module
    """A number that JSON or a float does not have."""

    def __init__(self, token: str) -> None:
        super().__init__(token)
        self.token = token
        self.shown = token if len(token) < 24 else f"{token[:12]}... ({len(token)} digits)"


def _no_constant(token: str) -> float:
    raise _Unwanted(token)


def _integer(token: str) -> int:
    """The integer; refuses one beyond a float's range: it is no quantity, and Python would take long to read it."""
    if len(token) > 300:
        raise _Unwanted(token)
    return int(token)


def _line_of(text: str, pattern: str, *, last: bool = False) -> int:
    """The line of the first or last match of a pattern."""
    start = 0
    for found in re.finditer(pattern, text):
        start = found.start()
        if not last:
            break
    return text.count("\n", 0, start) + 1


def bounded(document: Document) -> Document:
    """The document, if it is no deeper than any topology and has only finite numbers and printable texts."""
    for place, value in parts(document.value):
        if len(place) > MAX_DEPTH:
            raise document.error(place[:4], f"is nested too deeply, expected at most {MAX_DEPTH} levels")
        if isinstance(value, float) and not math.isfinite(value):
            raise document.error(place, f"is {value}, expected a finite number")
        # Names end up on terminals and in pictures, where an escape sequence or half a character does harm.
        if isinstance(value, str) and not value.isprintable():
            raise document.error(place, f"is {ascii(value)[:60]}, expected a text that can be printed")
        if isinstance(value, dict) and not all(key.isprintable() for key in value):
            raise document.error(place, "has a key that cannot be printed, expected plain text")
    return document


_SPACE = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder()


def _json_line(text: str, place: Place) -> int:
    """The line at which a part of a well-formed JSON text begins; of its key where it is a member."""
    start = at = _skip(text, 0)
    for step in place:
        for key, key_start, value_start in _members(text, at):
            if key == step:
                start, at = key_start, value_start
                break
    return text.count("\n", 0, start) + 1


def _members(text: str, at: int) -> Iterator[tuple[str | int, int, int]]:
    """Each member of the object or array that begins at a position: key or number, its position, that of its value."""
    named = text[at] == "{"
    at, number = _skip(text, at + 1), 0
    while text[at] not in "]}":
        key, start = number, at
        if named:
            key, at = scanstring(text, at + 1)
            at = _skip(text, _skip(text, at) + 1)
        yield key, start, at
        _, at = _DECODER.raw_decode(text, at)
        at, number = _skip(text, at), number + 1
        if text[at] == ",":
            at = _skip(text, at + 1)


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at
