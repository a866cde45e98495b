"""Reads a page of the documentation: its fenced blocks, with their lines and what the comments above them say.

A comment is a note if it is ``<!-- key: value -->`` with a key of NOTES. It belongs to the block right below it, but
for ``run``, which is a block of its own: a command that readers do not see.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

NOTES = frozenset({"file", "exit", "needs", "not run", "run"})
INDENTED = "(indented)"
_AROUND = ("bullet_list", "ordered_list", "list_item", "blockquote")


class PageError(ValueError):
    """A page that cannot be played as it is written; the message has the line."""


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block. ``line`` is that of its fence; ``answers``: nothing stands between it and a console above."""

    language: str
    text: str
    line: int
    notes: dict[str, str] = field(default_factory=dict)
    answers: bool = False

    @property
    def needs(self) -> tuple[str, ...]:
        """What has to be installed for it to run."""
        return tuple(re.split(r"[,\s]+", self.notes["needs"])) if "needs" in self.notes else ()


def read_page(path: Path) -> tuple[Block, ...]:
    """The blocks of a page, from top to bottom.

    Raises:
        PageError: A note is misspelt, or stands above no block.
    """
    return tuple(_Reader(path.read_text(encoding="utf-8")).blocks())


class _Reader:
    """Goes through the tokens of a page and keeps the notes until their block comes."""

    def __init__(self, text: str) -> None:
        self._tokens = MarkdownIt("commonmark").parse(text)
        self._notes: dict[str, str] = {}
        self._unknown = ""
        self._noted_at = 0
        self._after_console = False

    def blocks(self) -> Iterator[Block]:
        for token in self._tokens:
            if token.type == "html_block":
                yield from self._comments(token)
            elif token.type in ("fence", "code_block"):
                yield self._block(
                    token.info.strip() if token.type == "fence" else INDENTED, token.content, _line(token)
                )
            elif not token.type.startswith(_AROUND):
                self._after_console = False
                self._no_note_is_left()
        self._no_note_is_left()

    def _block(self, language: str, text: str, line: int) -> Block:
        if self._unknown:
            raise PageError(f"line {self._noted_at}: {self._unknown} is no note; there are {sorted(NOTES)}")
        answers = self._after_console and language == "text" and "not run" not in self._notes
        block = Block(language, text, line, self._notes, answers)
        self._notes, self._after_console = {}, language == "console"
        return block

    def _comments(self, token: Token) -> Iterator[Block]:
        for comment in re.findall(r"<!--\s*(.*?)\s*-->", token.content, re.DOTALL):
            key, colon, value = (part.strip() for part in comment.partition(":"))
            if not colon or not re.fullmatch(r"[a-z ]{1,10}", key):
                continue
            self._noted_at = _line(token)
            if key not in NOTES or not value:
                self._unknown = f"<!-- {comment} -->"
            elif key == "run":
                self._notes["run"] = value
                yield self._block("console", "", _line(token))
            else:
                self._notes[key] = value

    def _no_note_is_left(self) -> None:
        self._unknown = ""
        if self._notes:
            raise PageError(f"line {self._noted_at}: the note {self._notes} stands above no block")


def _line(token: Token) -> int:
    return token.map[0] + 1 if token.map else 0
