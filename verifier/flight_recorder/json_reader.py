"""Reads a Flight Recorder dump in JSON, entry by entry: a file that was cut gives the entries that are complete.

At most one entry is held at a time, and a limited number of all other values.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Final

from simcoll.verifier.flight_recorder.pickle_machine import ENTRIES, CutError, UnsafeDumpError

_WINDOW: Final = 1 << 18
_VALUE_LIMIT: Final = 16 << 20
"""Characters of one value: an entry, or the configuration of all groups."""
_BLANK: Final = re.compile(r"[ \t\n\r]*")
_DECODER: Final = json.JSONDecoder()


class JsonStream:
    """A JSON document being read; ``found`` holds the outermost values so far, the entries left out."""

    def __init__(self, text: str, take: Callable[[dict[object, object]], object]) -> None:
        self.found: dict[object, object] = {}
        self._text = text
        self._at = 0
        self._take = take
        self._window, self._first = "", 0

    def read(self) -> None:
        """Read the whole document; raises :class:`CutError`, :class:`UnsafeDumpError`."""
        self._expect("{")
        while self._next() != "}":
            key = self._value()
            self._expect(":")
            if key == ENTRIES and self._next() == "[":
                self._entries()
            else:
                self.found[key if isinstance(key, str) else str(key)[:80]] = self._value()
            if self._next() == ",":
                self._at += 1

    def _entries(self) -> None:
        self._expect("[")
        while self._next() != "]":
            entry = self._value()
            self._take(entry if isinstance(entry, dict) else {})
            if self._next() == ",":
                self._at += 1
        self._at += 1

    def _next(self) -> str:
        """The next character that is not blank."""
        blank = _BLANK.match(self._text, self._at)
        self._at = self._at if blank is None else blank.end()
        if self._at >= len(self._text):
            raise CutError
        return self._text[self._at]

    def _expect(self, character: str) -> None:
        if self._next() != character:
            raise UnsafeDumpError(f"at character {self._at} stands {self._text[self._at]!r} instead of {character!r}")
        self._at += 1

    def _value(self) -> object:
        """The next value, out of a window: a hostile value is never decoded as a whole."""
        self._next()
        size = _WINDOW
        while True:
            if not self._first <= self._at or self._at + size // 2 > self._first + len(self._window):
                self._window, self._first = self._text[self._at : self._at + size], self._at
            try:
                value, end = _DECODER.raw_decode(self._window, self._at - self._first)
            except RecursionError as error:
                raise UnsafeDumpError("its values are nested too deeply") from error
            except ValueError as error:
                size = self._wider(size, error)
                continue
            # A number at the window's end may go on behind it.
            if end == len(self._window) and self._first + end < len(self._text):
                size = self._wider(size, None)
                continue
            self._at = self._first + end
            return value

    def _wider(self, size: int, error: ValueError | None) -> int:
        self._first = len(self._text) + 1
        if self._at + size >= len(self._text):
            if isinstance(error, json.JSONDecodeError) and not _at_end(error):
                raise UnsafeDumpError(f"after character {self._at} it is not JSON: {error.msg}") from error
            raise CutError
        if size >= _VALUE_LIMIT:
            raise UnsafeDumpError(f"the value at character {self._at} is no JSON, or is larger than any dump needs")
        return size * 4


def _at_end(error: json.JSONDecodeError) -> bool:
    """True if a text is no JSON because it ends too early."""
    return error.msg.startswith("Unterminated") or error.pos >= len(error.doc.rstrip()) - len("false")
