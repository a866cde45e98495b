"""Text from traces made harmless: no markup, no control characters, nothing that a terminal would obey."""

from __future__ import annotations

from rich.text import Text

_LONGEST = 2_000


def safe(value: str) -> str:
    """A text from outside on one line: control, direction and other unprintable characters as escapes; cut if long."""
    text = "".join(
        character if character.isprintable() else character.encode("unicode_escape", "backslashreplace").decode("ascii")
        for character in value[:_LONGEST]
    )
    return text if len(value) <= _LONGEST else text + "..."


def plain(value: str, style: str = "") -> Text:
    """A safe text as a renderable; square brackets stay square brackets."""
    return Text(safe(value), style=style)
