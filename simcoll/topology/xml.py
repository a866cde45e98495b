"""XML as a tree whose elements know their line; no document types, no entities, bounded depth and number."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NoReturn
from xml.parsers import expat

from simcoll.errors import TopologyError

_MAX_DEPTH = 64
_MAX_ELEMENTS = 1_000_000
_NUMBER = re.compile(r"[-+]?(\d{1,18}(\.\d{0,18})?|\.\d{1,18})([eE][-+]?\d{1,2})?")


@dataclass(slots=True)
class Element:
    """An element: its tag, its attributes, its content, the file and the line at which it begins."""

    tag: str
    attributes: dict[str, str]
    file: str
    line: int
    children: list[Element] = field(default_factory=list)

    def all(self, *tags: str) -> Iterator[Element]:
        """The direct children with one of these tags."""
        return (child for child in self.children if child.tag in tags)

    def error(self, problem: str) -> TopologyError:
        """An error about this element: file, line, tag and problem."""
        return TopologyError(f"{self.file}, line {self.line}: <{self.tag}> {problem}")

    def number(self, name: str, default: float) -> float:
        """An attribute as a number; the default where it is absent or empty."""
        text = self.attributes.get(name, "").strip()
        if not text:
            return default
        if not _NUMBER.fullmatch(text):
            raise self.error(f"has {name}={text[:40]!r}, expected a number")
        return float(text)

    def whole(self, name: str, default: int) -> int:
        """An attribute as a whole number of at least 0, decimal or hexadecimal; the default where absent or empty."""
        text = self.attributes.get(name, "").strip()
        if not text:
            return default
        try:
            value = int(text[:20], 0)
        except ValueError:
            value = -1
        if value < 0:
            raise self.error(f"has {name}={text[:40]!r}, expected a whole number of at least 0")
        return value


def parse_xml(name: str, text: str) -> Element:
    """The root element; raises TopologyError, which names the line, for text that is no XML or has a document type."""
    builder = _Builder(name)
    try:
        builder.parser.Parse(text, True)
    except expat.ExpatError as error:
        raise TopologyError(f"{name}, line {error.lineno}: no XML: {expat.ErrorString(error.code)}") from None
    return builder.top.children[0]


class _Builder:
    """Expat's handlers; ``top`` holds the root."""

    def __init__(self, name: str) -> None:
        self.top = Element("", {}, name, 1)
        self.parser = expat.ParserCreate()
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.StartDoctypeDeclHandler = self._doctype
        self._open = [self.top]
        self._count = 0

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        self._count += 1
        element = Element(tag, attributes, self.top.file, self.parser.CurrentLineNumber)
        if len(self._open) > _MAX_DEPTH:
            raise element.error(f"is nested too deeply, expected at most {_MAX_DEPTH} levels")
        if self._count > _MAX_ELEMENTS:
            raise element.error(f"is one element too many, expected at most {_MAX_ELEMENTS:,}")
        self._open[-1].children.append(element)
        self._open.append(element)

    def _end(self, _tag: str) -> None:
        self._open.pop()

    def _doctype(self, *_: object) -> NoReturn:
        line = self.parser.CurrentLineNumber
        raise TopologyError(f"{self.top.file}, line {line}: a document type, expected plain elements; leave it out")
