"""Compares the output that a page shows with what a command printed.

A line ``...`` stands for any lines, ``...`` in a line for any text in it. What is shown in one piece has to be printed
in one piece; anything may stand before and after it. White space, line breaks that a width makes, and boxes do not
count.
"""

from __future__ import annotations

import re

GAP = "..."


def difference(shown: str, printed: str) -> str | None:
    """The first line that is shown and was not printed, and what stands in its place; None where there is none."""
    seen = _plain(printed)
    at = 0
    for piece in _pieces(shown):
        found = _pattern(piece).search(seen, at)
        if found is None:
            return _explained(piece, seen, at)
        at = found.end()
    return None


def _plain(text: str) -> str:
    """Lines without boxes and surplus white space, and without the empty ones."""
    lines = (" ".join(re.sub(r"[\u2500-\u257f]", " ", line).split()) for line in text.splitlines())
    return "\n".join(line for line in lines if line)


def _pieces(shown: str) -> list[list[str]]:
    """What stands between the lines that leave something out."""
    pieces: list[list[str]] = [[]]
    for line in _plain(shown).splitlines():
        if line == GAP:
            pieces.append([])
        else:
            pieces[-1].append(line)
    return [piece for piece in pieces if piece]


def _pattern(lines: list[str]) -> re.Pattern[str]:
    words = [r"[^\n]*?".join(map(re.escape, word.split(GAP))) for line in lines for word in line.split()]
    return re.compile(rf"(?<!\S){_spaced(words)}(?!\S)")


def _spaced(words: list[str]) -> str:
    """Any text may be no text: then the white space around it is one."""
    return r"\s+".join(words).replace(r"\s+[^\n]*?\s+", r"\s(?:[^\n]*?\s)?")


def _explained(piece: list[str], seen: str, at: int) -> str:
    """Names the first line by which nothing that was printed goes on like the page."""
    for length in range(len(piece) - 1, 0, -1):
        if found := _pattern(piece[:length]).search(seen, at):
            return f"shown:   {piece[length]}\nprinted: {_next_lines(seen[found.end() :])}"
    return f"shown:   {piece[0]}\nprinted: no such line; it was\n{seen or '(nothing)'}"


def _next_lines(rest: str) -> str:
    return "\n         ".join(rest.strip().splitlines()[:3]) or "(nothing more)"
