"""Documents written by hand, in any format: their text, and the place of each part of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from simcoll.core.io import open_at_once

Place = tuple[str | int, ...]
"""The way from the top of a document to a part of it: keys and positions."""


def read_utf8(path: Path, most: int, problem: type[ValueError], advice: str, limit: str) -> str:
    """The text of a file; raises ``problem``, with ``advice`` for one that is absent and ``limit`` for a larger one."""
    try:
        with open_at_once(path) as file:
            content = file.read(most + 1)
    except OSError as error:
        raise problem(f"cannot read {path}: {error.strerror}; {advice}") from None
    if len(content) > most:
        raise problem(f"{path} has more than {most:,} bytes{limit}")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise problem(f"{path}, line {line}: byte 0x{content[error.start]:02x} is no UTF-8 text") from None


def located(name: str, line: int, part: str, problem: str) -> str:
    """An error about a part of a document as one text: file, line, part and problem."""
    gap = " " if part and not problem.startswith(":") else ""
    return f"{name}, line {line}: {part}{gap}{problem}"


def parts(value: object) -> Iterator[tuple[Place, object]]:
    """Every part of a document with its place, without recursion."""
    pending: list[tuple[Place, object]] = [((), value)]
    while pending:
        place, part = pending.pop()
        yield place, part
        if isinstance(part, dict):
            pending += [((*place, key), member) for key, member in part.items()]
        elif isinstance(part, list):
            pending += [((*place, position), member) for position, member in enumerate(part)]
