"""Text from traces made harmless: no markup, no control characters, no commands to a terminal."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from itertools import accumulate

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions
from rich.measure import Measurement
from rich.segment import Segment
from rich.text import Span, Text

_LONGEST = 2_000


class Outside(Text):
    """A text that may hold anything: characters outside the console's encoding are drawn, and measured, as escapes."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterable[Segment]:
        yield from Text.__rich_console__(_encoded(self, options.encoding), console, options)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Text.__rich_measure__(_encoded(self, options.encoding), console, options)


class Fitted(Outside):
    """A cell of one line: the first of several wordings that fits, from long to short; else the last one, cut.

    What remains of it is its end (``keep_end``), as of a place in a file, or its beginning, as of a name.
    """

    def __init__(self, wordings: Sequence[str], style: str = "", *, keep_end: bool = True) -> None:
        self._wordings = [safe(from_here(wording)) for wording in wordings]
        self._keep_end = keep_end
        super().__init__(self._wordings[0], style=style)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterable[Segment]:
        yield from self._fitting(options).__rich_console__(console, options)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return self._fitting(options).__rich_measure__(console, options)

    def _fitting(self, options: ConsoleOptions) -> Text:
        texts = [_encoded(Text(one), options.encoding).plain for one in self._wordings]
        found = next((one for one in texts if cell_len(one) <= options.max_width), None)
        if found is None:
            found = texts[-1]
            while found and cell_len(found) + len(_CUT) > options.max_width:
                found = found[1:] if self._keep_end else found[:-1]
            found = _CUT + found if self._keep_end else found + _CUT
        return Text(found, self.style, no_wrap=True, overflow="crop")


_CUT = ".."


def _encoded(text: Text, encoding: str) -> Text:
    """The same text where it can be encoded; else with escapes, its styles where they were."""
    shown = [character.encode(encoding, "backslashreplace").decode(encoding) for character in text.plain]
    if "".join(shown) == text.plain:
        return text
    places = [0, *accumulate(map(len, shown))]
    found = text.blank_copy("".join(shown))
    found.spans = [Span(places[span.start], places[span.end], span.style) for span in text.spans]
    return found


def safe(value: str) -> str:
    """A text from outside on one line: control, direction and other unprintable characters as escapes; cut if long."""
    text = "".join(
        character if character.isprintable() else character.encode("unicode_escape", "backslashreplace").decode("ascii")
        for character in value[:_LONGEST]
    )
    return text if len(value) <= _LONGEST else text + "..."


def from_here(text: str) -> str:
    """A text in which paths below the current folder are relative to it: an editor or a shell opens them here."""
    try:
        here = os.getcwd()
    except OSError:
        return text
    # Elsewhere in a path, the same names are another folder.
    return text if here == os.sep else re.sub(rf"(?<![\w./~-]){re.escape(here + os.sep)}(?=[\w.~-])", "", text)


def plain(value: str, style: str = "") -> Text:
    """A safe text as a renderable, its paths as seen from here; square brackets stay so, and long words are folded."""
    return Outside(safe(from_here(value)), style=style, overflow="fold")
