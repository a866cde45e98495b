"""YAML documents whose errors name the line; needs PyYAML (``pip install 'simcoll[yaml]'``).

Only plain data is read, from PyYAML's events: nothing is constructed by tag, and anchors, aliases, tags and repeated
keys are refused. A number is what JSON calls one, so that ``50e9`` is a number, as its writer meant.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, NoReturn

from simcoll.topology.documents import MAX_DEPTH, Document, Json, Place, bounded
from simcoll.topology.graph import TopologyError

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

    def _value(self, event: Event, place: Place) -> Json:
        self._lines.setdefault(place, _line(event))
        if len(place) > MAX_DEPTH:
            self._refuse(event, f"nested too deeply, expected at most {MAX_DEPTH} levels")
        kind = _kind(event)
        if kind == "Scalar":
            return self._scalar(event)
        return self._mapping(place) if kind == "MappingStart" else self._sequence(place)

    def _mapping(self, place: Place) -> Json:
        found: dict[str, Json] = {}
        while _kind(event := self._next()) != "MappingEnd":
            if _kind(event) != "Scalar":
                self._refuse(event, "a key that is no text")
            key: str = event.value  # type: ignore[attr-defined]
            if key in found:
                self._refuse(event, f"the key {key!r} is repeated, expected it once")
            self._lines[(*place, key)] = _line(event)
            found[key] = self._value(self._next(), (*place, key))
        return found

    def _sequence(self, place: Place) -> Json:
        found: list[Json] = []
        while _kind(event := self._next()) != "SequenceEnd":
            found.append(self._value(event, (*place, len(found))))
        return found

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
